"""The sketch as a scikit-learn estimator."""

try:
    from sketchy.sklearn.pca import FrequentDirectionsPCA as FrequentDirectionsPCA
except ModuleNotFoundError as error:
    package = (error.name or "").partition(".")[0]
    raise ModuleNotFoundError(
        f"{package} is missing; pip install 'sketchy-optim[sklearn]' brings it", name=package
    ) from error
