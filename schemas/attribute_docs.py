"""Reads the docstrings of a model's fields, for JSON Schemas, the reference pages, and ``--help``.

Pydantic can do this when a class is created (``use_attribute_docstrings``), but then every import parses the
source, and parsing in two threads at once fails in Python 3.11 (SystemError: AST constructor recursion depth
mismatch, https://github.com/python/cpython/issues/106905). So this module parses only when asked.
"""

import ast
import inspect
import textwrap
from functools import cache
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import GenerateJsonSchema, JsonSchemaValue


@cache
def attribute_docs(model: type) -> dict[str, str]:
    """Field name -> the docstring under the field, in ``model`` and its base classes.

    >>> from schemas.manifest import SequenceSet
    >>> attribute_docs(SequenceSet)["tokens"]
    'Lengths of all rows together.'
    """
    docs: dict[str, str] = {}
    for owner in reversed(model.__mro__):
        if "__annotations__" in vars(owner) and owner is not BaseModel:
            docs |= _docs_in_source(owner)
    return docs


def _docs_in_source(owner: type) -> dict[str, str]:
    try:
        source = inspect.getsource(owner)
    except (OSError, TypeError):
        # A class without source, such as one made at run time, has no docstrings to read.
        return {}
    (definition,) = ast.parse(textwrap.dedent(source)).body
    if not isinstance(definition, ast.ClassDef):
        return {}
    docs = {}
    for field, text in zip(definition.body, definition.body[1:], strict=False):
        if (
            isinstance(field, ast.AnnAssign)
            and isinstance(field.target, ast.Name)
            and isinstance(text, ast.Expr)
            and isinstance(text.value, ast.Constant)
            and isinstance(text.value.value, str)
        ):
            docs[field.target.id] = inspect.cleandoc(text.value.value)
    return docs


class DescribedJsonSchema(GenerateJsonSchema):
    """Generates JSON Schemas whose properties have the docstrings of the fields as descriptions.

    >>> from schemas.manifest import SequenceSet
    >>> schema = SequenceSet.model_json_schema(schema_generator=DescribedJsonSchema)
    >>> schema["properties"]["tokens"]["description"]
    'Lengths of all rows together.'
    """

    def model_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema of a pydantic model."""
        return _described(super().model_schema(schema), schema["cls"])

    def dataclass_schema(self, schema: Any) -> JsonSchemaValue:
        """The schema of a dataclass."""
        return _described(super().dataclass_schema(schema), schema["cls"])


def _described(json_schema: JsonSchemaValue, model: type) -> JsonSchemaValue:
    docs = attribute_docs(model)
    for name, field in json_schema.get("properties", {}).items():
        if name in docs:
            field.setdefault("description", docs[name])
    return json_schema
