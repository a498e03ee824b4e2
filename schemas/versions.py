"""The version of this code, as written into manifests and checkpoints."""

from importlib.metadata import PackageNotFoundError, version

try:
    CODE_VERSION = version("bertmill")
except PackageNotFoundError:  # run from a checkout that is not installed
    CODE_VERSION = "0+unknown"
