#!/usr/bin/env python3
"""embed_pages.py FOLDER SOURCE NAME...: writes those files of FOLDER, gzipped, as a C++ source."""

import gzip
import pathlib
import sys


def main(folder, source, *names):
    folder = pathlib.Path(folder)
    files = [folder / name for name in names]
    text = ["// Made by cmake/embed_pages.py.", '#include "tessera/dashboard/embedded.h"',
            "namespace tessera::dashboard {"]
    rows = []
    for number, path in enumerate(files):
        packed = gzip.compress(path.read_bytes(), 9, mtime=0)
        text.append(f"static const unsigned char kFile{number}[] = {{")
        text += [",".join(str(byte) for byte in packed[at:at + 64]) + ","
                 for at in range(0, len(packed), 64)]
        text.append("};")
        rows.append(f'{{"/{path.relative_to(folder).as_posix()}", kFile{number}, {len(packed)}}},')
    text += ["const EmbeddedFile kEmbeddedFiles[] = {", *rows, "{nullptr, nullptr, 0}};",
             f"const std::size_t kEmbeddedCount = {len(rows)};", "}  // namespace tessera::dashboard"]
    pathlib.Path(source).write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
