"""Makes the tables and the chart of peers.py from its report."""

import html
import math
import statistics

import train_table

SHORT = {"ddp": "DDP", "zero1": "DDP + ZeroRedundancyOptimizer", "fsdp2-keep": "FSDP2, parameters kept",
         "fsdp2": "FSDP2", "deepspeed-1": "DeepSpeed 1", "deepspeed-2": "DeepSpeed 2",
         "deepspeed-3": "DeepSpeed 3"}
COLORS = {"Tessera": "#2b6cb0", "DDP": "#c05621", "FSDP2": "#2f855a", "DeepSpeed": "#6b46c1"}


def label(name):
    return SHORT.get(name) or f"Tessera, stage {name.rsplit('-', 1)[1]}"


def family(name):
    return "Tessera" if name.startswith("tessera") else train_table.FAMILY[name]


def case_of(report, ranks, size):
    return next((c for c in report["cases"] if c["ranks"] == ranks and c["size"] == size), None)


def description(report):
    m, about = report["machine"], report["peers_python"] or {}
    return (f"{report['date']}: {m['cpu']} ({m['architecture']}), {m['cores']} cores, "
            f"{m['memory_gib']} GiB, Linux {m['kernel']}. {m['tessera']}, commit {m['commit']}; peers: "
            f"torch {about.get('torch', 'missing')}, DeepSpeed {about.get('deepspeed') or 'missing'}. "
            f"{report['dtype']}, 256 tokens a rank, 1 thread a rank; {report['rounds']} rounds"
            f"{report['scheduling']}; load average {report['load_before']:.1f} before and "
            f"{report['load_after']:.1f} after.")


def case_table(case):
    """Returns a table with a row per program, by stage. × is the peer's time divided by Tessera's."""
    programs = case["programs"]
    sizes = [p["parameters"] for p in programs.values() if p.get("parameters")]
    of = f", {max(sizes) / 1e6:.1f} million parameters" if sizes else ""
    lines = [f"**{case['size']} model{of}, {case['ranks']} rank{'s' if case['ranks'] > 1 else ''}**", "",
             "| stage | | ms a step | least | spread | × Tessera | peak MB a rank | shared once |",
             "|---|---|--:|--:|--:|--:|--:|--:|"]
    for name, p in programs.items():
        middle, least = statistics.median(p["ms"]), min(p["ms"])
        ours = programs.get(f"tessera-own-{p['stage']}")
        times = f"{middle / statistics.median(ours['ms']):.2f}" if ours and ours is not p else ""
        memory = p.get("memory")
        cells = [str(p["stage"]), label(name), f"{middle:.1f}", f"{least:.1f}",
                 f"{100 * (max(p['ms']) - least) / middle:.0f}%", times,
                 f"{memory['peak'] / 1e6:,.0f}" if memory else "",
                 f"{memory['share'] / 1e6:,.0f}" if memory else ""]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def exponent(points):
    """Returns e of y ~ x^e by least squares of the logarithms, or None for fewer than two points."""
    points = [(math.log(x), math.log(y)) for x, y in points if x > 0 and y > 0]
    if len({x for x, _ in points}) < 2:
        return None
    mx, my = statistics.mean(p[0] for p in points), statistics.mean(p[1] for p in points)
    return (sum((x - mx) * (y - my) for x, y in points) / sum((x - mx) ** 2 for x, _ in points))


def series(report, name, along):
    """Returns (x, ms) of a program: over parameters for the most frequent number of ranks, or over ranks for
    the most frequent size."""
    best = []
    cases = report["cases"]
    for fixed in {c["ranks"] if along == "parameters" else c["size"] for c in cases}:
        points = []
        for case in cases:
            p = case["programs"].get(name)
            if p is None or (case["ranks"] if along == "parameters" else case["size"]) != fixed:
                continue
            x = p["parameters"] if along == "parameters" else case["ranks"]
            if x:
                points.append((x, statistics.median(p["ms"])))
        if len(points) > len(best):
            best = points
    return sorted(best)


def curves(report):
    names = list(dict.fromkeys(name for case in report["cases"] for name in case["programs"]))
    lines = ["| | against parameters, ms ~ P^e | | against ranks, ms ~ N^e | |", "|---|---|--:|---|--:|"]
    for name in names:
        cells = [label(name)]
        for along in ("parameters", "ranks"):
            points = series(report, name, along)
            e = exponent(points)
            x = (lambda v: f"{v / 1e6:.2g}M") if along == "parameters" else str
            cells += [", ".join(f"{x(a)}: {b:.1f}" for a, b in points),
                      "" if e is None else f"{e:.2f}"]
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def markdown(report):
    parts = [description(report)]
    parts += [case_table(case) for case in report["cases"]]
    if report["cases"]:
        parts.append(curves(report))
    for name, reason in report["left_out"].items():
        parts.append(f"Left out: {name}: {reason}.")
    return "\n\n".join(parts)


def svg(report):
    """Draws the time of a step over parameters, a line per program, both axes logarithmic."""
    names = list(dict.fromkeys(name for case in report["cases"] for name in case["programs"]))
    lines = {name: series(report, name, "parameters") for name in names}
    lines = {name: points for name, points in lines.items() if len(points) > 1}
    if not lines:
        return None
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    left, top, width, height = 70, 30, 470, 320
    lx, hx, ly, hy = min(xs), max(xs), min(ys) / 1.2, max(ys) * 1.2
    x = lambda v: left + width * math.log(v / lx) / math.log(hx / lx)
    y = lambda v: top + height * (1 - math.log(v / ly) / math.log(hy / ly))
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {left + width + 290} {top + height + 60}"'
           ' font-family="sans-serif" font-size="12">',
           f'<text x="{left}" y="18" font-size="14">Time of a training step in {report["dtype"]}, '
           f'{html.escape(report["machine"]["cpu"])}, {report["date"]}</text>']
    for tick in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 2000, 5000, 10000):
        if ly <= tick <= hy:
            out.append(f'<line x1="{left}" x2="{left + width}" y1="{y(tick):.1f}" y2="{y(tick):.1f}" '
                       f'stroke="#ddd"/><text x="{left - 8}" y="{y(tick) + 4:.1f}" '
                       f'text-anchor="end">{tick} ms</text>')
    for value in sorted(set(xs)):
        out.append(f'<text x="{x(value):.1f}" y="{top + height + 20}" text-anchor="middle">'
                   f'{value / 1e6:.2g}M</text>')
    # Names next to the last points, without overlap.
    ends = sorted(lines, key=lambda name: lines[name][-1][1], reverse=True)
    place = top
    for name in ends:
        points, color = lines[name], COLORS[family(name)]
        dash = "" if name.startswith("tessera") else ' stroke-dasharray="5 3"'
        path = " ".join(f"{x(a):.1f},{y(b):.1f}" for a, b in points)
        out.append(f'<polyline points="{path}" fill="none" stroke="{color}" stroke-width="1.6"{dash}/>')
        out += [f'<circle cx="{x(a):.1f}" cy="{y(b):.1f}" r="3" fill="{color}"/>' for a, b in points]
        place = max(place + 15, y(points[-1][1]))
        out.append(f'<text x="{left + width + 10}" y="{place:.1f}" fill="{color}">'
                   f'{html.escape(label(name))}: {points[-1][1]:.0f} ms</text>')
    out.append("</svg>")
    return "\n".join(out) + "\n"


def write_docs(docs, report):
    page = docs / "benchmarks.md"
    text = page.read_text()
    begin, end = f"<!-- peers {report['dtype']}: begin -->", f"<!-- peers {report['dtype']}: end -->"
    if begin not in text or end not in text:
        raise SystemExit(f"peers: {page} does not have the markers {begin} and {end}")
    picture = svg(report)
    if picture:
        (docs / f"peers-{report['dtype']}.svg").write_text(picture)
    drawn = f"\n\n![Time of a step against parameters](peers-{report['dtype']}.svg)" if picture else ""
    page.write_text(text.split(begin)[0] + f"{begin}\n{markdown(report)}{drawn}\n{end}"
                    + text.split(end)[1])
