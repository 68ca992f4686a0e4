"""All layers: what an evaluation costs by four ways to it, and what `--parameters all` reads out of
narrow networks.

    python benchmarks/layers.py --part evaluation --cifar cifar10.npz --out results.jsonl
            [--device cpu]
    python benchmarks/layers.py --part descent
            --cifar cifar10.npz --out results.jsonl [--device cpu]
    python benchmarks/layers.py --part narrow
            --cifar cifar10.npz --out results.jsonl [--seconds 500]
    python benchmarks/layers.py --part growth     --cifar cifar10.npz --out results.jsonl
    python benchmarks/layers.py --part images     --cifar cifar10.npz --out results.jsonl
            (convolutional, residual)
    python benchmarks/layers.py --picture convolutional-0.safetensors PNG --cifar cifar10.npz
            (what --save DIR left)
    python benchmarks/layers.py --table results.jsonl
    python benchmarks/layers.py --figure growth.png --table results.jsonl     (needs matplotlib)

Each result is one line of JSON; what is in the file already is not run again. The ways of
`evaluation`, each an objective and its gradient: layerwise (ours), cg (the paper's: conjugate
gradients on Jacobian products, to a relative residual of 1e-6), dense (the peers': the dense
Jacobian and autograd through the solve; its memory computed), products (the limit: the same matrix
products alone); at a random start, and at the data, where a search ends and where images make the
Gram ill-conditioned. `descent` times an iteration of projected gradient descent on the last layer
the same ways, one start or fifteen at once. On a GPU everything that never waits for it is timed as
the CUDA graph it runs as. Needs torch, numpy, scipy and safetensors.
"""

from __future__ import annotations

import argparse
import itertools
import json
import math
import statistics
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file

from recollect import (
    Endpoints,
    Exact,
    FullSpace,
    GradientDescent,
    RecollectWarning,
    Victim,
    evaluate,
    reconstruct,
)
from recollect.geometry import Sphere, random_start
from recollect.objective.evidence import Evidence
from recollect.objective.implicit import ImplicitObjective
from recollect.objective.last_layer import LastLayerObjective
from recollect.objective.layerwise import LayerwiseObjective
from recollect.simulate.training import train_network
from recollect.solve.loop import minimise, start
from recollect.system.seeds import stream
from recollect.truth.data.load import load_dataset
from recollect.truth.match import match, signed_distances
from recollect.victim.architectures import convolutional, residual
from recollect.victim.mlp import initial_theta, mlp
from recollect.victim.module import ModuleNetwork

_RATIOS = (110, 20)
"""Width over n of `growth`: three equations of the last layer an unknown, or more; so too at n ≤
30, too few at 300."""
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
Row = dict[str, Any]


def sync() -> None:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize()


def timed(work: Callable[[], object], least: float = 1.0) -> tuple[float, float]:
    """Median seconds of repeated calls after a warm-up, and the peak memory above what was there,
    in MB (CUDA)."""
    work()
    sync()
    before = torch.cuda.memory_allocated() if DEVICE.type == "cuda" else 0
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    times: list[float] = []
    while len(times) < 5 or (sum(times) < least and len(times) < 2000):
        began = time.perf_counter()
        work()
        sync()
        times.append(time.perf_counter() - began)
    peak = (torch.cuda.max_memory_allocated() - before) / 1e6 if DEVICE.type == "cuda" else math.nan
    return statistics.median(times), peak


def graphed(work: Callable[[], object]) -> Callable[[], object]:
    """The same as one launch, on a GPU."""
    if DEVICE.type != "cuda":
        return work
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        kept = work()  # what the graph writes to must live as long as the graph
    return lambda: (graph.replay(), kept)


def products(n: int, d: int, width: int, c: int, depth: int) -> float:
    """Seconds of the matrix products of a layerwise evaluation and nothing else."""
    sizes = [d, *[width] * (depth - 1), c]
    kinds: list[Callable[[], object]] = []
    for layer, (a, b) in enumerate(itertools.pairwise(sizes)):
        A, W, B = (torch.randn(*shape, device=DEVICE) for shape in ((n, a), (b, a), (n * c, b)))
        D = torch.randn(n, b, device=DEVICE)
        # forward; AΔᵀ; ARᵀ; AAᵀ; DᵀA; back through W and R for the gradient
        kinds += [lambda A=A, W=W: A @ W.T] * 3 + [lambda A=A: A @ A.T]
        kinds += [lambda D=D, A=A: D.T @ A] + [lambda D=D, W=W: D @ W] * 2
        if layer < depth - 1:  # at the last layer B is made of unit vectors
            kinds.append(lambda B=B: B @ B.T)
        if layer > 0:  # what enters a layer takes part in D and B as well
            kinds.append(lambda D=D, W=W: D @ W)
        if 0 < layer < depth - 1:
            kinds.append(lambda B=B, W=W: B @ W)
    return timed(graphed(lambda: [product() for product in kinds]))[0]


def peers(victim: Victim, names: tuple[str, ...], X: torch.Tensor) -> Callable[[], object]:
    """The objective as one would write it: the Jacobian, a solve, and autograd through both."""
    theta = {name: value.to(DEVICE, X.dtype) for name, value in victim.theta_f.items()}
    chosen = {name: theta[name] for name in names}
    delta = torch.cat([part.reshape(-1) for part in victim.delta(names).values()]).to(
        DEVICE, X.dtype
    )

    def outputs(chosen: dict[str, torch.Tensor], x: torch.Tensor) -> torch.Tensor:
        return victim.network({**theta, **chosen}, x[None])[0]

    def work() -> object:
        Z = X.detach().requires_grad_()
        blocks = torch.func.vmap(torch.func.jacrev(outputs), in_dims=(None, 0))(chosen, Z)
        G = torch.cat([blocks[name].reshape(len(X) * victim.c, -1) for name in names], dim=1)
        R = delta - G.T @ torch.linalg.solve(G @ G.T, G @ delta)
        return torch.autograd.grad(R.square().sum(), Z)

    return work


def descents(path: Path, n: int, width: int, starts: int) -> Row:
    """An iteration of projected gradient descent in full space, last layer, float32."""
    victim, _, _ = cifar_victim(
        path, n, width, 2, 0, tolerance=1e-2
    )  # its weights need not be trained to the end
    d, c, sphere = victim.d, victim.c, Sphere(math.sqrt(victim.d))
    objective = LastLayerObjective(Evidence.change(victim), device=DEVICE, dtype=torch.float32)
    Z = torch.stack([random_start(sphere, n, d, stream(f"start {k}", 0)) for k in range(starts)])
    Z = (Z if starts > 1 else Z[0]).to(DEVICE, torch.float32)

    def seconds(iterations: int) -> float:
        solver = GradientDescent(step_size=1.0, iterations=iterations)
        silent: dict[str, Any] = {
            "report": lambda done, message: None,
            "save": lambda run, seconds: None,
        }
        began = time.perf_counter()
        minimise(solver, objective, sphere, start(solver, Z), tolerance=0.0, **silent)
        sync()
        return time.perf_counter() - began

    few, many = (10, 30) if DEVICE.type == "cpu" else (100, 1100)
    seconds(few)
    ours = statistics.median((seconds(many) - seconds(few)) / (many - few) for _ in range(3))
    X, W = Z.reshape(-1, d), torch.randn(width, d, device=DEVICE)
    H, delta = torch.randn(starts, n, width, device=DEVICE), torch.randn(c, width, device=DEVICE)
    C = torch.randn(starts, n, c, device=DEVICE)

    def bare() -> object:
        return (X @ W.T, H @ H.mT, H @ delta.T, C.mT @ H, C @ delta, H.flatten(0, 1) @ W)

    theirs, peak = timed(
        peers(victim, victim.network.last.names, Z.reshape(-1, n, d)[0]), least=0.5
    )
    return {
        "ours_ms": 1e3 * ours / starts,
        "products_ms": 1e3 * timed(graphed(bare))[0] / starts,
        "peers_ms": 1e3 * theirs,
        "peers_mb": None if math.isnan(peak) else peak,
    }


def evaluations(path: Path, n: int, width: int, depth: int, c: int, at: str) -> Row:
    victim, truth, _ = cifar_victim(path, n, width, depth, 0, c)
    d, names = victim.d, victim.select("all")
    start = truth if at == "data" else random_start(Sphere(math.sqrt(d)), n, d, stream("start", 0))
    X = start.to(DEVICE, torch.float32)
    options: dict[str, Any] = {"device": DEVICE, "dtype": torch.float32}
    evidence = Evidence.change(victim)
    ours = LayerwiseObjective(evidence, names, **options)
    last = LastLayerObjective(evidence, **options)
    papers = ImplicitObjective(evidence, names, **options)
    seconds, peak = timed(lambda: ours.fit(X))
    seconds = timed(graphed(lambda: ours.fit(X)))[0]
    m = sum(victim.theta_f[name].numel() for name in names)
    return {
        "layerwise_ms": 1e3 * seconds,
        "layerwise_mb": None if math.isnan(peak) else peak,
        "estimate_mb": ours.sizes.fit_bytes(n) / 1e6,
        "last_layer_ms": 1e3 * timed(graphed(lambda: last.fit(X)))[0],
        "cg_ms": 1e3 * timed(lambda: papers.fit(X), least=0.0)[0],
        "cg_iterations": statistics.median(papers.iterations),
        "dense_mb": 4 * n * c * m / 1e6,
        "products_ms": 1e3 * products(n, d, width, c, depth),
        "loss": float(ours.fit(X, gradient=False).loss),
        "cg_loss": float(papers.fit(X, gradient=False).loss),
    }


def cifar_victim(
    path: Path, n: int, width: int, depth: int, seed: int, c: int = 10, tolerance: float = 1e-7
) -> tuple[Victim, torch.Tensor, float]:
    data = load_dataset(str(path), n)
    targets = data.targets[:, :c] if c > 1 else 2 * data.targets[:, :5].sum(1, keepdim=True) - 1
    network = mlp(data.inputs.shape[1], width, c, depth=depth)
    theta = initial_theta(
        network, init="fan-in", generator=stream("weights", seed), dtype=torch.float64
    )
    theta = {name: value.to(DEVICE) for name, value in theta.items()}
    done = train_network(
        network, theta, data.inputs.to(DEVICE), targets.to(DEVICE), tolerance=tolerance
    )
    return done.victim, data.inputs, done.seconds


def module_victim(
    path: Path, kind: str, n: int, width: int, seed: int
) -> tuple[Victim, torch.Tensor, float]:
    data = load_dataset(str(path), n)
    torch.manual_seed(seed)
    module = (convolutional if kind == "convolutional" else residual)(
        3, 32, width, data.targets.shape[1]
    ).double()
    theta = {name: value.detach().clone().to(DEVICE) for name, value in module.state_dict().items()}
    network = ModuleNetwork(module.to(DEVICE), theta, (3, 32, 32))
    done = train_network(network, theta, data.inputs.to(DEVICE), data.targets.to(DEVICE))
    return done.victim, data.inputs, done.seconds


def attacked(
    victim: Victim,
    truth: torch.Tensor,
    attack: Exact,
    seed: int,
    limit: float = math.inf,
    save: Path | None = None,
) -> Row:
    if DEVICE.type == "cuda":
        torch.cuda.reset_peak_memory_stats()
    began = time.perf_counter()
    deadline = time.monotonic() + limit
    found = reconstruct(victim, len(truth), attack, seed=seed, device=DEVICE, deadline=deadline)
    sync()
    seconds = time.perf_counter() - began
    score = evaluate(found, truth)
    errors = score.errors
    if save:
        save_file({"inputs": found.inputs.cpu().contiguous()}, save)
    return {
        "rho": score.rho,
        "rho_up_to_sign": score.rho_up_to_sign,
        "median_error": float(errors.median()),
        "worst": float(errors.max()),
        "recovered": score.recovered,
        "loss": found.loss,
        "status": found.status.name.lower(),
        "seconds": seconds,
        "peak_gb": torch.cuda.max_memory_allocated() / 1e9 if DEVICE.type == "cuda" else None,
        "chance_span": score.chance["span"],
        "left_at_data": left_at(victim, truth),
        "confidence": None if found.confidence is None else float(found.confidence.min()),
        "stages": [(s.name, s.loss, s.iterations, round(s.seconds, 3)) for s in found.stages],
        "notes": list(found.notes),
    }


def left_at(victim: Victim, X: torch.Tensor) -> dict[str, float]:
    """What the gradients at these points leave of the change of all layers, with one, two and three
    ends."""
    ends = (Endpoints.FINAL, Endpoints.BOTH, Endpoints.PATH)
    names, like = victim.select("all"), {"device": DEVICE, "dtype": torch.float64}
    objectives = [
        LayerwiseObjective(Evidence.change(victim).at(end), names, balanced=True, **like)
        for end in ends
    ]
    return {
        objective.endpoints.value: float(objective.fit(X.to(DEVICE).double(), gradient=False).loss)
        for objective in objectives
    }


def jobs(options: argparse.Namespace) -> list[tuple[Row, Callable[[], Row]]]:
    every = Exact(parameters="all")
    made: list[tuple[Row, Callable[[], Row]]] = []

    def on_cifar(part: str, n: int, width: int, depth: int, seed: int) -> None:
        def run() -> Row:
            victim, truth, spent = cifar_victim(options.cifar, n, width, depth, seed)
            return {
                **attacked(victim, truth, every, seed, options.limit),
                "training_seconds": spent,
            }

        made.append(({"part": part, "n": n, "width": width, "depth": depth, "seed": seed}, run))

    if options.part == "evaluation":
        for c, depth, at in itertools.chain(
            *([(c, k, "start"), (c, k, "data")] for c, k in ((10, 3), (1, 2)))
        ):
            key = {"part": "evaluation", "n": 100, "width": 1000, "c": c, "depth": depth, "at": at}
            made.append(
                (key, lambda c=c, k=depth, at=at: evaluations(options.cifar, 100, 1000, k, c, at))
            )
    if options.part == "descent":
        for width, starts in ((4000, 1), (32_000, 1), (4000, 15)):
            key = {
                "part": "descent",
                "n": 100,
                "width": width,
                "c": 10,
                "depth": 2,
                "starts": starts,
            }
            made.append(
                (
                    key,
                    lambda width=width, starts=starts: descents(options.cifar, 100, width, starts),
                )
            )
    if options.part == "narrow":
        for n, width in ((10, 100), (10, 50), (100, 2000), (100, 1000), (100, 500), (100, 300)):
            for seed in range(options.seeds):
                on_cifar("narrow", n, width, 2, seed)
        for width, depth in ((100, 3), (300, 5)):
            for seed in range(options.seeds):
                on_cifar("narrow", 10, width, depth, seed)
    if options.part == "growth":
        for ratio in _RATIOS:
            for n in (10, 30, 100, 300):
                on_cifar("growth", n, ratio * n, 2, 0)
    if options.part == "images":
        # The last layer of these has four equations to a coordinate.
        for kind, width in (("convolutional", 96), ("residual", 192)):
            for seed in range(options.seeds):

                def run(kind: str = kind, width: int = width, seed: int = seed) -> Row:
                    victim, truth, spent = module_victim(options.cifar, kind, 10, width, seed)
                    save = options.save and options.save / f"{kind}-{seed}.safetensors"
                    row = attacked(
                        victim, truth, Exact(space=FullSpace()), seed, options.limit, save
                    )
                    return {**row, "training_seconds": spent}

                made.append(
                    ({"part": "images", "kind": kind, "n": 10, "width": width, "seed": seed}, run)
                )
    return made


def table(path: Path) -> None:
    rows = [json.loads(line) for line in path.read_text().splitlines()]
    ways = [row for row in rows if row["part"] == "evaluation"]
    if ways:
        print(
            "| n | width | c | L | at | layerwise | last layer | cg (iterations) | products | ",
            end="",
        )
        print("memory | estimated | G | machine |\n|" + "---|" * 13)
    for row in ways:
        memory = "–" if row["layerwise_mb"] is None else f"{row['layerwise_mb']:.3g} MB"
        cells = [str(row[name]) for name in ("n", "width", "c", "depth", "at")]
        cells += [f"{row['layerwise_ms']:.3g} ms", f"{row['last_layer_ms']:.3g} ms"]
        cells += [
            f"{row['cg_ms']:.4g} ms ({row['cg_iterations']:.0f})",
            f"{row['products_ms']:.3g} ms",
        ]
        print(
            "| "
            + " | ".join(
                [
                    *cells,
                    memory,
                    f"{row['estimate_mb']:.3g} MB",
                    f"{row['dense_mb']:.0f} MB",
                    row["machine"],
                ]
            )
            + " |"
        )
    steps = [row for row in rows if row["part"] == "descent"]
    if steps:
        print(
            "\n| n | width | c | starts | an iteration of a start | products | of the limit | "
            "peers | ratio | ",
            end="",
        )
        print("peers' memory | machine |\n|" + "---|" * 11)
    for row in steps:
        memory = "–" if row["peers_mb"] is None else f"{row['peers_mb']:.3g} MB"
        cells = [str(row[name]) for name in ("n", "width", "c", "starts")]
        cells += [f"{row['ours_ms']:.3g} ms", f"{row['products_ms']:.3g} ms"]
        cells += [f"{row['products_ms'] / row['ours_ms']:.0%}", f"{row['peers_ms']:.3g} ms"]
        print(
            "| "
            + " | ".join(
                [*cells, f"{row['peers_ms'] / row['ours_ms']:.0f}×", memory, row["machine"]]
            )
            + " |"
        )
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        if row["part"] not in ("evaluation", "descent"):
            what = row.get("kind") or f"{row['depth']} layers"
            groups.setdefault(
                (row["part"], what, row["n"], row["width"], row["machine"]), []
            ).append(row)
    if groups:
        print(
            "\n| part | network | n | width | machine | ρ signed: median (range) | ρ up to sign | ",
            end="",
        )
        print("median point | recovered | seconds | GB | guessing in the span | ", end="")
        print("left at the data: θf, both, path | seeds |\n|" + "---|" * 14)
    for key, found in groups.items():
        cells = [*map(str, key)]
        cells += [
            _spread([row[name] for row in found])
            for name in ("rho", "rho_up_to_sign", "median_error")
        ]
        cells.append(f"{statistics.median(row['recovered'] for row in found):.0%}")
        cells.append(_spread([row["seconds"] for row in found if row["seconds"] is not None]))
        memory = [row["peak_gb"] for row in found if row["peak_gb"] is not None]
        cells += [f"{max(memory):.2g}" if memory else "–", f"{found[0]['chance_span']:.2f}"]
        left = [row["left_at_data"] for row in found if "left_at_data" in row]
        middle = (
            [statistics.median(one[end] for one in left) for end in ("final", "both", "path")]
            if left
            else []
        )
        cells += [", ".join(f"{value:.2g}" for value in middle) or "–", str(len(found))]
        print("| " + " | ".join(cells) + " |")


def figure(path: Path, rows: list[Row]) -> None:
    """Seconds and memory on a GPU against the number of points, with ρ beside each; sizes of
    `narrow` among them."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    rows = [
        row
        for row in rows
        if row["part"] in ("growth", "narrow") and row["depth"] == 2 and not row["seed"]
    ]
    rows = sorted(
        (row for row in rows if row["peak_gb"] is not None and row["seconds"]),
        key=lambda row: row["n"],
    )
    shown, (left, right) = pyplot.subplots(1, 2, figsize=(9, 3.8), layout="constrained")
    ticks = sorted({row["n"] for row in rows})
    for axes, name, label in (
        (left, "seconds", "seconds"),
        (right, "peak_gb", "GPU memory at its peak, GB"),
    ):
        for ratio, mark, colour in zip(_RATIOS, "Ds", ("#1f6f8b", "#c1531b"), strict=True):
            line = [row for row in rows if row["width"] == ratio * row["n"]]
            x, y = [row["n"] for row in line], [row[name] for row in line]
            axes.plot(x, y, f"{mark}-", color=colour, label=f"width {ratio}n")
            if axes is left:
                for row, one in zip(line, y, strict=True):
                    where = (
                        (-30, 7) if ratio == min(_RATIOS) else (6, -12)
                    )  # the narrower takes longer
                    place = {"textcoords": "offset points", "xytext": where, "color": colour}
                    axes.annotate(f"ρ {row['rho']:.2g}", (row["n"], one), fontsize=8, **place)
        axes.set(xscale="log", yscale="log", xlabel="images n", ylabel=label)
        axes.set_xticks(ticks, map(str, ticks))
        axes.minorticks_off()
        axes.grid(alpha=0.3)
        axes.margins(x=0.15, y=0.15)
        axes.spines[["top", "right"]].set_visible(False)
    left.legend(frameon=False, loc="lower right")
    shown.savefig(path, dpi=150)


def picture(path: Path, found: Path, cifar: Path) -> None:
    """The training images above the reconstructions matched to them."""
    from recollect.report.pictures import sheet

    inputs = load_file(found)["inputs"]
    data = load_dataset(str(cifar), len(inputs))
    assert data.pixel_space is not None
    pairs = match(signed_distances(data.inputs, inputs.double()))
    errors = pairs.distances / data.inputs.norm(dim=1)
    pictures = [
        data.pixel_space.pixels(points, data.norms)
        for points in (data.inputs, inputs[pairs.found].double())
    ]
    path.write_bytes(sheet(pictures[0], pictures[1], [f"{error:.3f}" for error in errors.tolist()]))


def _spread(values: list[float]) -> str:
    if not values:
        return "–"
    middle, least, most = (
        f"{value:.0f}" if value >= 100 else f"{value:.2g}"
        for value in (statistics.median(values), min(values), max(values))
    )
    return f"{middle} ({least}–{most})"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--part", choices=["evaluation", "descent", "narrow", "growth", "images"])
    parser.add_argument("--cifar", type=Path)
    parser.add_argument("--out", type=Path)
    parser.add_argument(
        "--seconds", type=float, default=math.inf, help="start nothing new after so long"
    )
    parser.add_argument(
        "--limit",
        type=float,
        default=math.inf,
        help="end an attack after so long, with what it has",
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--device", choices=["cpu", "cuda"])
    parser.add_argument("--only", help="N:WIDTH or N:WIDTH:SEED, one size of the part")
    parser.add_argument(
        "--busy", action="store_true", help="other work runs here too: times are left out"
    )
    parser.add_argument("--table", type=Path)
    parser.add_argument("--figure", type=Path, help="the growth with n, from the rows of --table")
    parser.add_argument("--save", type=Path, help="folder for what `images` finds")
    parser.add_argument(
        "--picture", nargs=2, type=Path, metavar=("FOUND", "PNG"), help="draw what --save wrote"
    )
    options = parser.parse_args()
    warnings.simplefilter("ignore", RecollectWarning)
    if options.table:
        if options.figure:
            figure(
                options.figure,
                [json.loads(line) for line in options.table.read_text().splitlines()],
            )
        else:
            table(options.table)
        return
    if options.picture:
        if options.cifar is None:
            parser.error("--picture needs --cifar")
        picture(options.picture[1], options.picture[0], options.cifar)
        return
    if options.part is None or options.out is None or options.cifar is None:
        parser.error("--part, --cifar and --out are needed")
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
    global DEVICE
    DEVICE = torch.device(options.device) if options.device else DEVICE
    machine = (
        torch.cuda.get_device_name()
        if DEVICE.type == "cuda"
        else f"CPU, {torch.get_num_threads()} threads"
    )
    done = (
        [json.loads(line) for line in options.out.read_text().splitlines()]
        if options.out.exists()
        else []
    )
    began = time.perf_counter()
    for key, run in jobs(options):
        key = {**key, "machine": machine}
        size = f"{key['n']}:{key['width']}"
        if options.only and options.only not in (size, f"{size}:{key.get('seed')}"):
            continue
        if any(key.items() <= row.items() for row in done):
            continue
        if time.perf_counter() - began > options.seconds:
            print("out of time; run again to go on")
            return
        row = {**key, **run()}
        if options.busy:
            row = {name: None if name.endswith("seconds") else value for name, value in row.items()}
        with options.out.open("a") as file:
            file.write(json.dumps(row) + "\n")
        print(json.dumps(row), flush=True)


if __name__ == "__main__":
    main()
