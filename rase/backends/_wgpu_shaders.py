"""WGSL: activations times a quantized matrix, whose blocks are unpacked on the way into workgroup memory.

A workgroup computes 32 rows x 32 outputs, depth in steps of 32. Each output is one accumulator that takes the
depths in ascending order, so that its bits depend neither on the other rows of a call nor on their number.
Weights have the values of ``gguf/dequantize.py``; what the compiler contracts is the adapter's affair.
"""

from __future__ import annotations

__all__ = ["TILE", "UNPACKED", "shader"]

TILE = 32

_HEAD = """
struct Shape { rows: u32, outputs: u32, depth: u32, row_bytes: u32, first: u32 };
@group(0) @binding(0) var<storage, read> w: array<u32>;
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> out: array<f32>;
@group(0) @binding(3) var<uniform> shape: Shape;
var<workgroup> left: array<f32, 1024>;   // (depth, row)
var<workgroup> right: array<f32, 1024>;  // (depth, output)

fn byte(at: u32) -> u32 { return (w[at >> 2u] >> ((at & 3u) << 3u)) & 255u; }
fn word(at: u32) -> u32 {
    return byte(at) | (byte(at + 1u) << 8u) | (byte(at + 2u) << 16u) | (byte(at + 3u) << 24u);
}
fn half(at: u32) -> f32 { return unpack2x16float(byte(at) | (byte(at + 1u) << 8u)).x; }
fn signed_byte(at: u32) -> f32 { return f32(i32(byte(at) << 24u) >> 24u); }
"""

# Each unpacks 16 weights of the block at byte ``at``, those from ``j`` on, to right[slot + 32 i].
_LEGACY = """
fn unpack(at: u32, j: u32, slot: u32) {{
    let d = half(at);
    {minimum}
    for (var i = 0u; i < 16u; i += 1u) {{
        right[slot + 32u * i] = {value};
    }}
}}
"""
_NIBBLE = "(byte(at + {quants}u + i) >> (j >> 2u)) & 15u"
_FIFTH = "(((high >> (j + i)) & 1u) << 4u)"

_SIX_BITS = """
fn scales(at: u32, s: u32) -> vec2<f32> {
    let a = byte(at + 4u + (s & 3u));
    let b = byte(at + 8u + (s & 3u));
    if (s < 4u) { return vec2<f32>(f32(a & 63u), f32(b & 63u)); }
    let c = byte(at + 12u + (s & 3u));
    return vec2<f32>(f32((c & 15u) | ((a >> 2u) & 48u)), f32((c >> 4u) | ((b >> 2u) & 48u)));
}
"""
_K = """
fn unpack(at: u32, j: u32, slot: u32) {{
    let s = scales(at, j >> 5u);
    let d = half(at) * s.x;
    let m = half(at + 2u) * s.y;
    let place = at + {quants}u + ((j >> 6u) << 5u) + (j & 31u);
    for (var i = 0u; i < 16u; i += 1u) {{
        let q = ((byte(place + i) >> (((j >> 5u) & 1u) << 2u)) & 15u){high};
        right[slot + 32u * i] = d * f32(q) - m;
    }}
}}
"""
_Q6_K = """
fn unpack(at: u32, j: u32, slot: u32) {
    let d = half(at + 208u) * signed_byte(at + 192u + (j >> 4u));
    let half_block = j >> 7u;
    let r = j & 127u;
    let low = at + (half_block << 6u) + (r & 63u);
    let high = at + 128u + (half_block << 5u) + (r & 31u);
    for (var i = 0u; i < 16u; i += 1u) {
        let q = ((byte(low + i) >> ((r >> 6u) << 2u)) & 15u)
            | (((byte(high + i) >> ((r >> 5u) << 1u)) & 3u) << 4u);
        right[slot + 32u * i] = d * f32(i32(q) - 32);
    }
}
"""


def _legacy(quants: int, value: str, minimum: str = "") -> str:
    return _LEGACY.format(minimum=minimum, value=value.replace("NIBBLE", _NIBBLE.format(quants=quants)))


UNPACKED: dict[str, str] = {
    "Q4_0": _legacy(2, "d * f32(i32(NIBBLE) - 8)"),
    "Q4_1": _legacy(4, "d * f32(NIBBLE) + m", "let m = half(at + 2u);"),
    "Q5_0": _legacy(
        6, f"d * f32(i32((NIBBLE) | {_FIFTH}) - 16)",
        "let high = word(at + 2u);"),
    "Q8_0": _legacy(0, "d * signed_byte(at + 2u + j + i)"),
    "Q4_K": _SIX_BITS + _K.format(quants=16, high=""),
    "Q5_K": _SIX_BITS + _K.format(
        quants=48, high=" | (((byte(at + 16u + (j & 31u) + i) >> (j >> 5u)) & 1u) << 4u)"),
    "Q6_K": _Q6_K,
}  # fmt: skip

_MAIN = """
@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
    let first_output = group.x * 32u;
    let first_row = group.y * 32u;
    let mine = lane >> 1u;            // the row, and the output, whose depths this lane fetches
    let part = (lane & 1u) << 4u;     // 16 of each step's 32
    let row = first_row + mine;
    let output = min(first_output + mine, shape.outputs - 1u);
    let r4 = (lane >> 3u) << 2u;      // the 4 x 4 results of this lane
    let c4 = (lane & 7u) << 2u;
    var sums: array<vec4<f32>, 4>;
    for (var k = 0u; k < shape.depth; k += 32u) {{
        for (var i = 0u; i < 16u; i += 1u) {{
            var value = 0.0;
            if (row < shape.rows) {{ value = x[row * shape.depth + k + part + i]; }}
            left[mine + 32u * (part + i)] = value;
        }}
        unpack(output * shape.row_bytes + ((k + part) / {block}u) * {bytes}u, (k + part) % {block}u,
               mine + 32u * part);
        workgroupBarrier();
        for (var i = 0u; i < 32u; i += 1u) {{
            let at = i << 5u;
            let to = at + c4;
            let weights = vec4<f32>(right[to], right[to + 1u], right[to + 2u], right[to + 3u]);
            sums[0] += left[at + r4] * weights;
            sums[1] += left[at + r4 + 1u] * weights;
            sums[2] += left[at + r4 + 2u] * weights;
            sums[3] += left[at + r4 + 3u] * weights;
        }}
        workgroupBarrier();
    }}
    for (var i = 0u; i < 4u; i += 1u) {{
        let to = first_row + r4 + i;
        for (var c = 0u; c < 4u; c += 1u) {{
            let column = first_output + c4 + c;
            if (to < shape.rows && column < shape.outputs) {{
                out[shape.first + to * shape.outputs + column] = sums[i][c];
            }}
        }}
    }}
}}
"""


def shader(name: str, block: int, nbytes: int) -> str:
    """The program for weights of the format ``name``, whose blocks of ``block`` weights take ``nbytes``."""
    return _HEAD + UNPACKED[name] + _MAIN.format(block=block, bytes=nbytes)
