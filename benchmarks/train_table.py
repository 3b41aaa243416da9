"""Makes the Markdown tables of compare_train.py from its report."""

import statistics

# Column of each peer.
FAMILY = {"ddp": "DDP", "zero1": "DDP", "fsdp2-keep": "FSDP2", "fsdp2": "FSDP2",
          "deepspeed-1": "DeepSpeed", "deepspeed-2": "DeepSpeed", "deepspeed-3": "DeepSpeed"}
COLUMNS = ["DDP", "FSDP2", "DeepSpeed"]
# Target ratio of tokens/s to the peer, by model and dtype.
TARGETS = {
    ("own", "bf16"): {"DDP": 1.5, "FSDP2": 1.8, "DeepSpeed": 1.8},
    ("plain", "bf16"): {"DDP": 1.15, "FSDP2": 1.4, "DeepSpeed": 1.4},
    ("own", "fp32"): {"DDP": 1.15, "FSDP2": 1.3, "DeepSpeed": 1.3},
    ("plain", "fp32"): {},
}
OF_SILENT = 0.95  # target fraction of the same run without communication
LABELS = {
    "none": "PyTorch, no communication", "ddp": "PyTorch DDP",
    "zero1": "PyTorch DDP + ZeroRedundancyOptimizer",
    "fsdp2-keep": "PyTorch FSDP2, parameters kept", "fsdp2": "PyTorch FSDP2",
    "deepspeed-1": "DeepSpeed 1", "deepspeed-2": "DeepSpeed 2", "deepspeed-3": "DeepSpeed 3",
}


def label(name):
    if name in LABELS:
        return LABELS[name]
    _, model, _, *silent = name.split("-")
    text = "Tessera, own GPT" if model == "own" else "Tessera, plain LibTorch GPT"
    return text + (", communication off" if silent else "")


def ratio_of(ours, theirs):
    """Returns the ratios of the medians and of the best, and the median of the ratios per round."""
    pairs = [a["tokens_per_s"] / b["tokens_per_s"] for a, b in zip(ours["turns"], theirs["turns"])]
    return {"median": ours["median"] / theirs["median"], "best": ours["best"] / theirs["best"],
            "paired": statistics.median(pairs)}


def rows(report, dtype, peers, none):
    """Returns a row per program: its ratios by column, the targets, and whether they are met (None: no
    target)."""
    found = []
    for result in (r for r in report["results"] if r["dtype"] == dtype):
        programs, stage = result["programs"], result["stage"]
        for name, figures in programs.items():
            ours = name.startswith("tessera-")
            model = name.split("-")[1] if ours else None
            silent = (name + "-nocomm" if ours else none)
            row = {"stage": stage, "name": name, "figures": figures, "ratios": {}, "met": None}
            with_comm = name != none and not name.endswith("-nocomm")
            if with_comm and silent in programs:
                row["ratios"]["silent"] = {**ratio_of(figures, programs[silent]),
                                           "target": OF_SILENT if ours else None}
            for peer in peers[stage] if ours and with_comm else []:
                if peer in programs:
                    family = FAMILY[peer]
                    row["ratios"][family] = {**ratio_of(figures, programs[peer]), "peer": peer,
                                             "target": TARGETS[(model, dtype)].get(family)}
            judged = [r for r in row["ratios"].values() if r["target"] is not None]
            if judged:
                row["met"] = all(r["median"] >= r["target"] for r in judged)
            found.append(row)
    return found


def cell(ratio, digits):
    if ratio is None:
        return ""
    text = f"{ratio['median']:.{digits}f} ({ratio['best']:.{digits}f})"
    return text + (f", want {ratio['target']:g}" if ratio["target"] is not None else "")


def markdown(table, dtype):
    lines = [f"| stage | {dtype} | tokens/s | of no communication | "
             + " | ".join(f"× {column}" for column in COLUMNS) + " | |",
             "|---|---|---|---|" + "---|" * len(COLUMNS) + "---|"]
    for row in table:
        figures = row["figures"]
        cells = [str(row["stage"]), label(row["name"]),
                 f"{figures['median']:,.0f} ({figures['best']:,.0f})",
                 cell(row["ratios"].get("silent"), 2)]
        cells += [cell(row["ratios"].get(column), 2) for column in COLUMNS]
        cells.append({True: "met", False: "**missed**", None: ""}[row["met"]])
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def description(report):
    m, about = report["machine"], report["peers_python"] or {}
    shape = report["shape"]
    deepspeed = about.get("deepspeed")
    heap = ", peers keep freed memory" if report["peer_heap"] == "keep" else ""
    confined = f" on {len(report['cores'])} cores" if report["cores"] else ""
    return (f"{report['date']}: {m['cpu']} ({m['architecture']}), {m['cores']} cores, "
            f"{m['memory_gib']} GiB, Linux {m['kernel']}. {m['tessera']}, commit {m['commit']}; "
            f"peers: torch {about.get('torch', 'missing')}, DeepSpeed {deepspeed or 'missing'}"
            f"{heap}. GPT of {shape['layers']} layers, width {shape['hidden']}, vocabulary "
            f"{shape['vocab']}, {shape['micro-batch']} × {shape['seq']} tokens a rank; "
            f"{report['ranks']} ranks of 1 thread{confined}. {report['rounds']} rounds of "
            f"{report['steps']} steps{report['scheduling']}; load average {report['load_before']} "
            f"before and {report['load_after']} after.")


def write_docs(page, report, tables):
    """Replaces the table of each measured dtype. The others do not change."""
    text = page.read_text()
    for dtype, table in tables.items():
        begin, end = f"<!-- train {dtype}: begin -->", f"<!-- train {dtype}: end -->"
        if begin not in text or end not in text:
            raise SystemExit(f"bench: {page} does not have the markers {begin} and {end}")
        before, after = text.split(begin)[0], text.split(end)[1]
        text = (f"{before}{begin}\n{description(report)}\n\n"
                f"{markdown(table, dtype)}\n{end}{after}")
    page.write_text(text)
