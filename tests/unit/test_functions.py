from __future__ import annotations

import pytest

from pulsar_ray import Context, Function, IdentitySerDe, PickleSerDe, SerDe


def test_a_function_can_be_written_and_called() -> None:
    class Upper(Function):
        def process(self, input: str, context: Context) -> str:  # noqa: A002
            return input.upper()

    assert Upper().process("a", Context()) == "A"  # type: ignore[abstract]  # only by its decorators
    assert issubclass(PickleSerDe, SerDe)


def test_the_two_serdes() -> None:
    pickled = PickleSerDe()
    assert pickled.deserialize(pickled.serialize([1, None])) == [1, None]
    plain = IdentitySerDe()
    for value in (1, 1.5, 2j, "a", b"\xff"):
        assert plain.deserialize(plain.serialize(value)) == value
    assert plain.deserialize(plain.serialize("1")) == 1
    wrong: object
    for wrong in (True, None, []):
        with pytest.raises(TypeError, match="IdentitySerde cannot serialize object of type"):
            plain.serialize(wrong)
