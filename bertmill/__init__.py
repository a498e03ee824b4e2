"""The console command: build, pretrain, evaluate, export, verify, inspect, doctor, explain."""

from importlib.metadata import PackageNotFoundError, version

try:
    __version__ = version("bertmill")
except PackageNotFoundError:  # run from a checkout that is not installed
    __version__ = "0+unknown"
