"""The arithmetic of shapes and sizes never overflows, rounds or accepts what a kernel cannot index."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rase.errors import CorruptModelFile
from rase.gguf.formats import FORMATS, KNOWN_TYPES, MAX_ELEMENTS, Format, format_named

formats = st.sampled_from(list(FORMATS.values()))
lengths = st.one_of(
    st.integers(-2, 600), st.integers(0, 2**64 - 1), st.sampled_from([2**31, 2**32, 2**63, 2**64 - 256])
)


@given(formats, st.lists(lengths, max_size=5))
def test_tensor_bytes_is_exact_or_refused(form: Format, shape: list[int]) -> None:
    valid = (
        bool(shape)
        and min(shape) >= 1
        and math.prod(shape) <= MAX_ELEMENTS
        and shape[-1] % form.block_size == 0
    )
    if valid:
        nbytes = form.tensor_bytes(shape)
        assert nbytes * form.block_size == math.prod(shape) * form.block_bytes
        assert 0 < nbytes < 2**63
    else:
        with pytest.raises(CorruptModelFile):
            form.tensor_bytes(shape)


@given(formats, st.integers(-600, 2**40))
def test_row_bytes_takes_whole_blocks_only(form: Format, cols: int) -> None:
    if cols > 0 and cols % form.block_size == 0:
        assert form.row_bytes(cols) == cols // form.block_size * form.block_bytes
    else:
        with pytest.raises(CorruptModelFile, match=form.name):
            form.row_bytes(cols)


def test_type_names_are_those_of_the_package() -> None:
    import gguf

    for kind in gguf.GGMLQuantizationType:
        assert KNOWN_TYPES[kind.value] == kind.name
    assert all(KNOWN_TYPES[ggml_id] == form.name for ggml_id, form in FORMATS.items())
    assert format_named("Q4_K").ggml_id == 12
    with pytest.raises(KeyError):
        format_named("NVFP4")
