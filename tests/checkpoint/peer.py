#!/usr/bin/env python3
"""Reads a safetensors file with the package safetensors and writes it again: peer.py FROM TO.

Needs no numpy: the package's core works on bytes."""

import ctypes
import pathlib
import sys

import safetensors

WORDS = {
    "F64": "float64", "F32": "float32", "F16": "float16", "BF16": "bfloat16",
    "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2", "I64": "int64", "I32": "int32",
    "I16": "int16", "I8": "int8", "U64": "uint64", "U32": "uint32", "U16": "uint16", "U8": "uint8",
    "BOOL": "bool",
}


def main(source, target):
    tensors = safetensors.deserialize(pathlib.Path(source).read_bytes())
    keep, out = [], {}
    for name, tensor in tensors:
        data = bytes(tensor["data"])
        dtype = WORDS[tensor["dtype"]]
        if hasattr(safetensors, "TensorSpec"):
            buffer = ctypes.create_string_buffer(data, max(1, len(data)))
            keep.append(buffer)
            out[name] = safetensors.TensorSpec(dtype=dtype, shape=tensor["shape"],
                                               data_ptr=ctypes.addressof(buffer),
                                               data_len=len(data))
        else:  # before version 0.8
            out[name] = {"dtype": dtype, "shape": tensor["shape"], "data": data}
    pathlib.Path(target).write_bytes(safetensors.serialize(out, {"by": "peer"}))
    print(f"{len(out)} tensors by safetensors {safetensors.__version__}")


if __name__ == "__main__":
    main(*sys.argv[1:])
