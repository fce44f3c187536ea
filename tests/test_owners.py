"""Exactly one module may change a fact: the one that defines the class of the object that has it.

A write is an assignment (also augmented, subscripted or `del`) to an attribute of an object, or a
call that changes a container which is such an attribute. It is allowed

- on `self` and `cls`,
- on what the same function has made by calling a class,
- where the object's class is defined in the same module: by the annotation of a parameter or
  variable, or else because a class of the module has an attribute of that name.

Whoever else wants a change calls a method. Objects of other libraries are not looked at: an
attribute counts if some class here has one of that name. Types are not inferred: a container that
is passed on as an argument is changed unseen.
"""

import ast
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
ROOMS = (
    *sorted(
        f"runtime/{path.name}"
        for path in (ROOT / "runtime").iterdir()
        if (path / "__init__.py").exists()
    ),
    "moe",
)
"""Folders in which every module keeps to the rule."""
EXCEPTIONS: dict[str, str] = {
    "runtime/actors/links/tls.py: context.minimum_version": "how ssl is set up",
    "runtime/actors/links/tls.py: context.verify_mode": "how ssl is set up",
}
"""Writes that are right all the same, `path: target`, and why."""

CONTAINERS = frozenset(
    {"bytearray", "Counter", "defaultdict", "deque", "dict", "list", "OrderedDict", "set"}
)
MUTATORS = frozenset(
    {
        *("add", "append", "appendleft", "clear", "difference_update", "discard", "extend"),
        *("insert", "intersection_update", "move_to_end", "pop", "popitem", "popleft", "remove"),
        *("setdefault", "sort", "subtract", "update"),
    }
)
FUNCTIONS_THAT_MUTATE = frozenset({"heapify", "heappop", "heappush", "insort"})
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass
class Declared:
    """Attributes by the names that classes declare; an ambiguous name is in both sets."""

    attributes: set[str] = field(default_factory=set)
    containers: set[str] = field(default_factory=set)
    others: set[str] = field(default_factory=set)

    def add(self, name: str, kind: str | None) -> None:
        """A class has this attribute; `kind` is the class that made it or that it is annotated
        with, None if that is not plain to see.
        """
        self.attributes.add(name)
        if kind is not None:
            (self.containers if kind in CONTAINERS else self.others).add(name)

    def add_all(self, other: "Declared") -> None:
        """What another module says, too."""
        self.attributes |= other.attributes
        self.containers |= other.containers
        self.others |= other.others


def head(node: ast.expr | None) -> str | None:
    """The class that an annotation names first: `dict` of `dict[str, int] | None`."""
    match node:
        case ast.Constant(value=str(text)):
            return head(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left):
            return head(left)
        case ast.Subscript(value=value):
            return head(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def made_by(value: ast.expr | None) -> str | None:
    """The class whose call or literal this expression is."""
    match value:
        case ast.Call(func=func):
            name = head(func)
            is_class = name is not None and (name in CONTAINERS or name.lstrip("_")[:1].isupper())
            return name if is_class else None
        case ast.Dict() | ast.DictComp():
            return "dict"
        case ast.List() | ast.ListComp():
            return "list"
        case ast.Set() | ast.SetComp():
            return "set"
    return None


def declare(tree: ast.AST) -> Declared:
    """What the classes of a module say of their attributes."""
    declared = Declared()
    for cls in (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef)):
        for node in ast.walk(cls):
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind) if node in cls.body:
                    declared.add(name, head(kind))
                case ast.AnnAssign(
                    target=ast.Attribute(value=ast.Name(id="self"), attr=name), annotation=kind
                ):
                    declared.add(name, head(kind))
                case ast.Assign(targets=targets, value=value):
                    for target in targets:
                        for attribute in _attributes(target):
                            if isinstance(attribute.value, ast.Name) and attribute is target:
                                declared.add(attribute.attr, made_by(value))
    return declared


def _attributes(target: ast.expr) -> Iterator[ast.Attribute]:
    """The attributes that an assignment to `target` changes."""
    match target:
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            for part in parts:
                yield from _attributes(part)
        case ast.Starred(value=value) | ast.Subscript(value=value):
            yield from _attributes(value)
        case ast.Attribute():
            yield target


class Writes(ast.NodeVisitor):
    """Collects the writes of one module that its classes do not own."""

    def __init__(self, tree: ast.Module, known: Declared) -> None:
        self.found: list[tuple[int, str]] = []
        self._own = {node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef)}
        self._own_attributes = declare(tree).attributes
        self._containers = known.containers
        self._attributes = known.attributes
        self._types: dict[str, str] = {}
        """Local names whose class is plain to see."""
        self._made: set[str] = set()
        """Local names of what this function has made."""
        self._aliases: dict[str, ast.Attribute] = {}
        """Local names of a container that is somebody's attribute."""

    def visit_FunctionDef(self, node: Function) -> None:
        """Look at one function, whose names hide those around it."""
        outer = self._types, self._made, self._aliases
        self._types, self._made, self._aliases = dict(outer[0]), set(outer[1]), dict(outer[2])
        for argument in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs):
            self._types.pop(argument.arg, None)
            self._made.discard(argument.arg)
            kind = head(argument.annotation)
            if kind is not None:
                self._types[argument.arg] = kind
        self.generic_visit(node)
        self._types, self._made, self._aliases = outer

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_Assign(self, node: ast.Assign) -> None:
        """`a.b = c`; and what a local name stands for from now on."""
        for target in node.targets:
            self._write(target)
            if isinstance(target, ast.Name):
                self._name(target.id, made_by(node.value), node.value)
        self.generic_visit(node)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        """`a.b: C = c`."""
        self._write(node.target)
        if isinstance(node.target, ast.Name):
            self._name(node.target.id, made_by(node.value), node.value)
            self._types[node.target.id] = head(node.annotation) or ""
        self.generic_visit(node)

    def visit_AugAssign(self, node: ast.AugAssign) -> None:
        """Look at a write such as `a.b += c`."""
        self._write(node.target)
        self.generic_visit(node)

    def visit_Delete(self, node: ast.Delete) -> None:
        """Look at a write such as `del a.b[c]`."""
        for target in node.targets:
            self._write(target)

    def visit_For(self, node: ast.For) -> None:
        """`for a.b in c`."""
        self._write(node.target)
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        """`a.b.append(c)`, `heapq.heappush(a.b, c)`, `setattr(a, "b", c)`."""
        match node.func:
            case ast.Attribute(value=value, attr=method) if method in MUTATORS:
                self._change(value)
        function = head(node.func)
        if function in FUNCTIONS_THAT_MUTATE:
            self._change(node.args[0])
        if function in ("setattr", "delattr") and not self._is_self(node.args[0]):
            self.found.append((node.lineno, ast.unparse(node)))
        self.generic_visit(node)

    def _name(self, name: str, kind: str | None, value: ast.expr | None) -> None:
        self._types.pop(name, None)
        self._made.discard(name)
        self._aliases.pop(name, None)
        if kind is not None:
            self._types[name] = kind
            self._made.add(name)
        if isinstance(value, ast.Attribute) and value.attr in self._containers:
            self._aliases[name] = value

    def _write(self, target: ast.expr) -> None:
        for attribute in _attributes(target):
            self._judge(attribute)
        while isinstance(target, ast.Subscript):
            target = target.value
            if isinstance(target, ast.Name) and target.id in self._aliases:
                self._judge(self._aliases[target.id])

    def _change(self, container: ast.expr) -> None:
        """A container is changed in place."""
        while isinstance(container, ast.Subscript):
            container = container.value
        if isinstance(container, ast.Name):
            container = self._aliases.get(container.id, container)
        if isinstance(container, ast.Attribute) and container.attr in self._containers:
            self._judge(container)

    @staticmethod
    def _is_self(node: ast.expr) -> bool:
        return isinstance(node, ast.Name) and node.id in ("self", "cls")

    def _judge(self, attribute: ast.Attribute) -> None:
        holder = attribute.value
        if self._is_self(holder) or attribute.attr not in self._attributes:
            return
        kind = self._types.get(holder.id) if isinstance(holder, ast.Name) else None
        if isinstance(holder, ast.Name) and holder.id in self._made:
            return
        is_own = attribute.attr in self._own_attributes if kind is None else kind in self._own
        if not is_own:
            self.found.append((attribute.lineno, ast.unparse(attribute)))


def writes(source: str, known: Declared) -> list[str]:
    """What a module writes without owning it, in order. `known`: all attributes that count."""
    tree = ast.parse(source)
    visitor = Writes(tree, known)
    visitor.visit(tree)
    return [target for _, target in sorted(visitor.found)]


@cache
def declared_by_path() -> dict[Path, Declared]:
    """What each module of `runtime/` and `moe/` says of its attributes."""
    paths = (*(ROOT / "runtime").rglob("*.py"), *(ROOT / "moe").rglob("*.py"))
    return {path: declare(ast.parse(path.read_text())) for path in paths}


def breaches(folder: str) -> list[str]:
    """Each write in a folder that the rule forbids and no exception allows."""
    everywhere, here = Declared(), Declared()
    paths = sorted((ROOT / folder).rglob("*.py"))
    for path, declared in declared_by_path().items():
        everywhere.add_all(declared)
        if path in paths:
            here.add_all(declared)
    # What a name means in its own room counts; elsewhere only a name with one meaning does.
    containers = (here.containers - here.others) | (everywhere.containers - everywhere.others)
    known = Declared(attributes=everywhere.attributes, containers=containers)

    found = []
    for path in paths:
        name = str(path.relative_to(ROOT))
        found += [f"{name}: {target}" for target in writes(path.read_text(), known)]
    return [breach for breach in found if breach not in EXCEPTIONS]


PLANTED = Declared(
    attributes={"a", "is_warm", "num_tokens", "queue", "running", "state"},
    containers={"queue", "running"},
)


@pytest.mark.parametrize("room", ROOMS)
def test_no_attribute_is_written_outside_the_module_of_its_class(room: str) -> None:
    assert breaches(room) == []


@pytest.mark.parametrize(
    "statement",
    [
        "lane.is_warm = True",
        "lane.is_warm: bool = True",
        "lane.num_tokens += 1",
        "lane.running[name] = 1",
        "lane.running[name].state = 1",
        "del lane.running[name]",
        "lane.a, other = 1, 2",
        "self.lane.is_warm = True",
        "lane.running.pop(name)",
        "lane.running[name].queue.append(1)",
        "heapq.heappush(lane.queue, 1)",
        "setattr(lane, name, 1)",
        "delattr(lane, name)",
        "queue = lane.queue; queue.append(1)",
        "queue = lane.queue; queue[0] = 1",
        "queue = lane.queue; del queue[0]",
        "for lane in lanes: lane.is_warm = True",
    ],
)
def test_a_planted_write_is_found(statement: str) -> None:
    source = f"def act(self, lane: Lane, lanes, name):\n    {statement}\n"
    assert len(writes(source, PLANTED)) == 1


@pytest.mark.parametrize(
    "statement",
    [
        "self.is_warm = True",
        "self.queue.append(1)",
        "made = Lane(); made.is_warm = True",
        "lane.admit(name)",
        "lane.waiting.discard(name)",
        "queue = list(lane.queue); queue.append(1)",
        "own.is_open = True",
        "for each in owned: each.is_open = True",
    ],
)
def test_a_write_by_the_owner_and_a_call_of_its_method_are_allowed(statement: str) -> None:
    owner = "class Own:\n    is_open: bool\n"
    source = f"{owner}def act(self, lane: Lane, own: Own, owned, name):\n    {statement}\n"
    assert writes(source, PLANTED) == []
