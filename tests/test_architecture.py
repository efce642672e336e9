"""The rules of the house as code: who may import whom, how long a file may be, what is public."""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
ROOMS = {
    "agentgym_env": ROOT / "agentgym_env",
    "agentgym_servers": ROOT / "servers" / "agentgym_servers",
    "agentgym_adapters": ROOT / "adapters" / "agentgym_adapters",
    "agentgym_train": ROOT / "agentgym_train",
}
MAY_IMPORT = {
    "agentgym_env": set(),
    "agentgym_adapters": {"agentgym_env"},
    "agentgym_servers": {"agentgym_env", "agentgym_adapters"},
    "agentgym_train": {"agentgym_env", "agentgym_adapters"},
}
ENV_MAY_USE = {"gymnasium", "numpy", "requests", "aiohttp", "msgspec", "typer", "rich", "click"}
CONFINED = {
    "starlette": (),
    "fastapi": (),
    "uvicorn": ("agentgym_servers.",),
    "bm25s": ("agentgym_servers.retrieval.bm25_",),
    "faiss": ("agentgym_servers.retrieval.dense",),
    "sentence_transformers": ("agentgym_servers.retrieval.dense_encoder",),
    "mcp": ("agentgym_adapters.mcp_client",),
    "websockets": ("agentgym_adapters.openenv_socket",),
    "openenv": (),
    "nemo_gym": (),
    "vllm": ("agentgym_train.engines.vllm_",),
    "verifiers": ("agentgym_adapters.verifiers_",),
    "browsergym": (
        "agentgym_adapters.browsergym_tasks",
        "agentgym_adapters.agentlab_args",
        "agentgym_servers.web.chromium.",
    ),
    "trl": (
        "agentgym_train.config",
        "agentgym_train.trainer",
        "agentgym_train.update",
        "agentgym_train.imitation",
        "agentgym_train.preference",
        "agentgym_adapters.trl_hooks",
    ),
}
TORCH_FREE = (
    "agentgym_train",
    "agentgym_train.attempt",
    "agentgym_train.chat",
    "agentgym_train.collect",
    "agentgym_train.collect_command",
    "agentgym_train.commands",
    "agentgym_train.config",
    "agentgym_train.demonstrations",
    "agentgym_train.episode",
    "agentgym_train.evolve_config",
    "agentgym_train.exploration",
    "agentgym_train.exchange_commands",
    "agentgym_train.eval_command",
    "agentgym_train.horizon",
    "agentgym_train.imitation_config",
    "agentgym_train.kept_tokens",
    "agentgym_train.launching",
    "agentgym_train.methods",
    "agentgym_train.outcomes",
    "agentgym_train.overrides",
    "agentgym_train.pair_rows",
    "agentgym_train.pairs",
    "agentgym_train.preference_config",
    "agentgym_train.players",
    "agentgym_train.policy_names",
    "agentgym_train.prepare",
    "agentgym_train.replay",
    "agentgym_train.rollout",
    "agentgym_train.row_order",
    "agentgym_train.run_config",
    "agentgym_train.step_figures",
    "agentgym_train.stragglers",
    "agentgym_train.teaching_rows",
    "agentgym_train.traffic",
    "agentgym_train.viewer.command",
    "agentgym_train.worlds",
    "agentgym_train.engines._gate",
    "agentgym_train.engines.protocol",
    "agentgym_train.engines.scripted",
    "agentgym_train.engines.settings",
    "agentgym_train.engines.vllm_fleet",
    "agentgym_train.engines.vllm_wire",
)
LOADERS = {
    "from_pretrained",
    "from_config",
    "SentenceTransformer",
    "CrossEncoder",
    "LLM",
    "EngineArgs",
    "AsyncEngineArgs",
    "GRPOConfig",
    "SFTConfig",
    "DPOConfig",
}
"""What loads a model, tokenizer or config, or is told how to."""
HEAVY = {"torch", "transformers", "trl", "accelerate", "datasets", "tokenizers", "matplotlib"}
MOST_LINES = 350
MOST_FUNCTION_LINES = 50
MOST_PUBLIC_NAMES = 15


def module_name(path: Path) -> str:
    room = next(name for name, folder in ROOMS.items() if folder in path.parents)
    parts = path.relative_to(ROOMS[room].parent).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


MODULES = {
    module_name(path): path for folder in ROOMS.values() for path in sorted(folder.rglob("*.py"))
}
TREES = {name: ast.parse(path.read_text(encoding="utf-8")) for name, path in MODULES.items()}


def imports(name: str, *, at_import_time: bool = False) -> Iterator[str]:
    """Every module that `name` imports; `at_import_time` leaves out those inside functions."""
    pending: list[ast.AST] = [TREES[name]]
    while pending:
        node = pending.pop()
        if at_import_time and isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name} imports relatively"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in MODULES else str(node.module)
        pending.extend(ast.iter_child_nodes(node))


def top(name: str) -> str:
    return name.partition(".")[0]


@pytest.mark.parametrize("name", MODULES)
def test_a_room_imports_only_the_rooms_below_it(name):
    room = top(name)
    foreign = {top(i) for i in imports(name)} & set(ROOMS) - {room} - MAY_IMPORT[room]
    assert not foreign, f"{name} imports {foreign}"


@pytest.mark.parametrize("name", [n for n in MODULES if top(n) == "agentgym_env"])
def test_the_sdk_uses_only_its_few_dependencies(name):
    used = {top(i) for i in imports(name)} - {"agentgym_env"} - sys.stdlib_module_names
    assert used <= ENV_MAY_USE, f"{name} imports {used - ENV_MAY_USE}"


@pytest.mark.parametrize("name", MODULES)
def test_third_parties_stay_where_they_are_confined(name):
    for imported in {top(i) for i in imports(name)} & set(CONFINED):
        assert name.startswith(CONFINED[imported]), f"{name} imports {imported}"


@pytest.mark.parametrize("name", TORCH_FREE)
def test_the_turn_loop_is_free_of_torch(name):
    reached, pending = set(), [name]
    while pending:
        module = pending.pop()
        for imported in imports(module, at_import_time=True):
            assert top(imported) not in HEAVY, f"{name} reaches {imported} through {module}"
            if imported in MODULES and imported not in reached:
                reached.add(imported)
                pending.append(imported)


def test_no_modules_import_one_another_in_a_circle():
    edges = {
        name: {i for i in imports(name, at_import_time=True) if i in MODULES and i != name}
        for name in MODULES
    }
    while free := [name for name, needs in edges.items() if not needs]:
        for name in free:
            del edges[name]
        for needs in edges.values():
            needs.difference_update(free)
    assert not edges, f"in or behind a circle: {sorted(edges)}"


@pytest.mark.parametrize("name", MODULES)
def test_a_file_is_short_and_says_what_it_is(name):
    lines = len(MODULES[name].read_text(encoding="utf-8").splitlines())
    assert lines <= MOST_LINES, f"{name} has {lines} lines"
    assert ast.get_docstring(TREES[name]), f"{name} has no docstring"


@pytest.mark.parametrize("name", MODULES)
def test_a_function_fits_a_screen(name):
    for node in ast.walk(TREES[name]):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = node.body[0]
            # Signature and docstring are the contract, not the work.
            documented = isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant)
            start = (first.end_lineno or 0) + 1 if documented else first.lineno
            length = (node.end_lineno or 0) - start + 1
            assert length <= MOST_FUNCTION_LINES, f"{name}.{node.name} has {length} lines"


@pytest.mark.parametrize("name", ROOMS)
def test_a_package_has_few_public_names(name):
    declared = [
        element.value
        for node in ast.walk(TREES[name])
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for element in node.value.elts
    ]
    assert len(declared) <= MOST_PUBLIC_NAMES


@pytest.mark.parametrize("name", MODULES)
def test_nothing_prints(name):
    called = {ast.unparse(n.func) for n in ast.walk(TREES[name]) if isinstance(n, ast.Call)}
    assert "print" not in called


@pytest.mark.parametrize("name", MODULES)
def test_no_module_bears_the_name_of_a_package_it_wraps(name):
    own = name.rpartition(".")[2]
    assert own not in {top(i) for i in imports(name)} - {top(name)}


def test_whatever_loads_a_model_refuses_the_code_that_comes_with_it():
    scripts = [p for folder in ("examples", "benchmarks") for p in (ROOT / folder).rglob("*.py")]
    trees = TREES | {str(path): ast.parse(path.read_text(encoding="utf-8")) for path in scripts}
    refusing = 0
    for name, tree in trees.items():
        functions = [n for n in ast.walk(tree) if isinstance(n, ast.FunctionDef)]
        within = {node: function for function in functions for node in ast.walk(function)}
        for node in ast.walk(tree):
            if isinstance(node, ast.Call) and ast.unparse(node.func).split(".")[-1] in LOADERS:
                unpacks = any(keyword.arg is None for keyword in node.keywords)
                # What is unpacked is a dict in the same function.
                written = ast.walk(within[node]) if unpacks and node in within else ()
                dicts = [part for part in written if isinstance(part, ast.Dict)]
                refuses = any(map(refuses_remote_code, [node, *dicts]))
                assert refuses, f"{name}, line {node.lineno}: pass trust_remote_code=False"
                refusing += 1
    assert refusing >= 13, "the loaders have other names now"


def refuses_remote_code(node: ast.AST) -> bool:
    """Whether a call or a dict of arguments has `trust_remote_code` as False."""
    given: list[tuple[str | None, ast.expr | None]] = []
    if isinstance(node, ast.Call):
        given = [(keyword.arg, keyword.value) for keyword in node.keywords]
    elif isinstance(node, ast.Dict):
        names = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
        given = list(zip(names, node.values, strict=True))
    return any(
        name == "trust_remote_code" and isinstance(value, ast.Constant) and value.value is False
        for name, value in given
    )
