"""The sketch as a scikit-learn estimator."""

from sketchy.extras import missing

try:
    from sketchy.sklearn.pca import FrequentDirectionsPCA as FrequentDirectionsPCA
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    raise ModuleNotFoundError(missing(package, "sklearn"), name=package) from error
