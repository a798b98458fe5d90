"""Where the small data files are, in a checkout and in an installed wheel alike."""

from importlib.resources import files
from pathlib import Path


def data_file(name: str) -> Path:
    """Path of `name` in the project's `data/` folder (`labkit/data` inside a wheel).

    Raises FileNotFoundError with the names that do exist.
    """
    package = Path(str(files("labkit")))
    folders = (package / "data", package.parent / "data")
    for folder in folders:
        if (folder / name).is_file():
            return folder / name
    known = sorted({path.name for folder in folders if folder.is_dir() for path in folder.iterdir()})
    raise FileNotFoundError(f"no data file named {name!r}; there are: {', '.join(known)}")
