"""Mutants that change no result, with the reason: by file, and by the line with the ⟦change⟧."""

SAME: dict[str, dict[str, str]] = {}
