"""The public names of ``import bertmill``."""

import subprocess
import sys

import pytest

import bertmill


def test_every_public_name_is_there_and_documented() -> None:
    assert sorted(bertmill.__all__) == sorted(bertmill._MODULES)
    for name in bertmill.__all__:
        assert getattr(bertmill, name).__doc__
    assert set(bertmill.__all__) <= set(dir(bertmill))


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'bertmill' has no attribute 'biuld'"):
        bertmill.biuld  # noqa: B018


def test_importing_it_loads_no_large_library() -> None:
    large = {"torch", "ray", "pyarrow", "numpy", "pydantic", "transformers"}
    code = f"import sys, bertmill; print(sorted({large!r} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
