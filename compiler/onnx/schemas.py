"""What ONNX says of its operators: how many inputs, which attributes, and bodies for those that are functions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import onnx

from dla.compiler.onnx.protos import domain_of
from dla.isa.errors import ModelError
from dla.isa.names import shown


def schema_of(node: onnx.NodeProto, version: int) -> Any:
    """ONNX's definition of a node's operator in operator set `version`; None for operators of others."""
    try:
        return onnx.defs.get_schema(node.op_type, min(max(version, 1), 2**31 - 1), domain_of(node.domain))
    except onnx.defs.SchemaError:
        return None


def check_node(node: onnx.NodeProto, version: int) -> None:
    """Raise ModelError if a node has not the inputs, outputs or attributes that its operator has.

    Rules may then take attributes to be of their type, also operators and attributes that came in after `version`.
    What ONNX does not define is not checked.
    """
    newest = schema_of(node, onnx.defs.onnx_opset_version())
    schema = schema_of(node, version) or newest
    if schema is None or schema.deprecated:
        return
    for what, count, least, most in (
        ("inputs", len(node.input), schema.min_input, schema.max_input),
        ("outputs", len(node.output), schema.min_output, schema.max_output),
    ):
        if not least <= count <= most:
            wanted = str(least) if least == most else f"{least} to {most}"
            raise ModelError(f"it has {count} {what} instead of {wanted}")
    given = {a.name: a for a in node.attribute}
    later = {} if newest is None else newest.attributes
    for name, attribute in {**later, **schema.attributes}.items():
        if name not in given:
            if attribute.required and name in schema.attributes:
                raise ModelError(f"attribute '{name}' is missing")
        elif given[name].type != attribute.type.value:
            raise ModelError(f"attribute '{name}' is not {attribute.type.name.lower()}")


def defaults_of(node: onnx.NodeProto, version: int) -> list[onnx.AttributeProto]:
    """The values that attributes of a node's operator have where they are not written."""
    schema = schema_of(node, version)
    attributes = schema.attributes.values() if schema is not None else ()
    return [a.default_value for a in attributes if a.default_value.name]


def has_body(node: onnx.NodeProto, version: int) -> bool:
    """Whether ONNX defines a node's operator by others."""
    schema = schema_of(node, version)
    return schema is not None and (schema.has_function or schema.has_context_dependent_function)


def body_of(node: onnx.NodeProto, version: int, types: Sequence[onnx.TypeProto]) -> onnx.FunctionProto:
    """The newest body of an operator that holds for operator set `version`, for inputs of the given types.

    Raises ModelError if there is none.
    """
    schema, body = schema_of(node, version), b""
    if schema is not None and schema.has_function:
        versions = [v for v in schema.function_opset_versions if v <= version]
        chosen = max(versions, default=min(schema.function_opset_versions))
        body = schema.get_function_with_opset_version(chosen)
    elif schema is not None and schema.has_context_dependent_function:
        versions = [v for v in schema.context_dependent_function_opset_versions if v <= version]
        chosen = max(versions, default=min(schema.context_dependent_function_opset_versions))
        body = schema.get_context_dependent_function_with_opset_version(
            chosen, node.SerializeToString(), [t.SerializeToString() for t in types]
        )
    if not body:
        raise ModelError(f"operator {shown(node.op_type)} is not supported")
    function = onnx.FunctionProto()
    function.ParseFromString(body)
    return function
