"""Tests reading the docstrings of fields from the source."""

from dataclasses import dataclass

from pydantic import BaseModel

from schemas.attribute_docs import DescribedJsonSchema, attribute_docs


class Base(BaseModel):
    first: int = 1
    """The first
    field."""
    second: int = 2
    """The second field."""
    bare: int = 3


@dataclass
class Point:
    x: int = 0
    """Pixels from the left."""


class Derived(Base):
    second: int = 4
    """Another second field."""
    point: Point = Point()


def test_docstrings_of_base_classes_count_and_the_nearest_one_wins() -> None:
    assert attribute_docs(Derived) == {"first": "The first\nfield.", "second": "Another second field."}


def test_the_json_schema_has_the_docstrings_of_models_and_dataclasses() -> None:
    schema = Derived.model_json_schema(schema_generator=DescribedJsonSchema)
    assert schema["properties"]["first"]["description"] == "The first\nfield."
    assert "description" not in schema["properties"]["bare"]
    assert schema["$defs"]["Point"]["properties"]["x"]["description"] == "Pixels from the left."


def test_a_class_without_source_has_no_docs() -> None:
    made = type("Made", (), {"__annotations__": {"x": int}, "__module__": __name__})
    assert attribute_docs(made) == {}
