"""Which owners each function of some modules commands, found in their text alone.

An owner is a class whose docstring says what it `Owns:`. A command is a method that changes what
its object has. A function commands an owner if it calls a command on an object of that class, but
for its own object and a private part that this has made itself. Types are those that annotations
of parameters, attributes and results say; what they do not say is passed over.
"""

import ast
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from tests.test_owners import FUNCTIONS_THAT_MUTATE, MUTATORS, Function

_LISTS = ("list", "Sequence", "Iterable", "Iterator", "set", "deque", "reversed", "sorted", "tuple")
_MAPPINGS = ("dict", "OrderedDict", "Mapping")


@dataclass
class Class:
    """What a class says of itself."""

    is_owner: bool
    attributes: dict[str, ast.expr] = field(default_factory=dict)
    """The annotation of each attribute and property that is known."""
    made: set[str] = field(default_factory=set)
    """The attributes that the class makes itself."""
    methods: dict[str, Function] = field(default_factory=dict)
    commands: set[str] = field(default_factory=set)


def head(kind: ast.expr | None) -> str | None:
    """The class that an annotation names; of `Lane | None` it is `Lane`."""
    match kind:
        case ast.Constant(value=str(text)):
            return head(ast.parse(text, mode="eval").body)
        case ast.BinOp(left=left):
            return head(left)
        case ast.Subscript(value=value):
            return head(value)
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return None


def item(kind: ast.expr | None) -> ast.expr | None:
    """What is in a container: the values of a mapping."""
    if isinstance(kind, ast.BinOp):
        return item(kind.left)
    if not isinstance(kind, ast.Subscript):
        return None
    parts = kind.slice.elts if isinstance(kind.slice, ast.Tuple) else [kind.slice]
    if head(kind) in _MAPPINGS:
        return parts[1]
    return parts[0] if head(kind) in _LISTS else None


def is_part(expression: ast.expr) -> bool:
    """Whether this is `self` or something that it has."""
    while isinstance(expression, ast.Attribute | ast.Subscript):
        expression = expression.value
    return isinstance(expression, ast.Name) and expression.id == "self"


class Room:
    """Some modules, given by their text: their classes, and what their functions command."""

    def __init__(self, sources: Mapping[str, str], not_owners: Iterable[str] = ()) -> None:
        self.classes: dict[str, Class] = {}
        self._functions: dict[str, list[tuple[str, str | None, Function]]] = {}
        self._not_owners = frozenset(not_owners)
        for module, source in sources.items():
            self._read(module, ast.parse(source))
        for _ in range(2):
            for _, name, function in self._all():
                if name is not None:
                    self._note_attributes(self.classes[name], Scope(self, name, function))
        while self._find_commands():
            pass

    def _read(self, module: str, tree: ast.Module) -> None:
        for node in tree.body:
            match node:
                case ast.FunctionDef():
                    self._functions.setdefault(node.name, []).append((module, None, node))
                case ast.ClassDef():
                    self._read_class(module, node)

    def _read_class(self, module: str, node: ast.ClassDef) -> None:
        owns = "Owns:" in (ast.get_docstring(node) or "") and node.name not in self._not_owners
        found = self.classes[node.name] = Class(is_owner=owns)
        for each in node.body:
            match each:
                case ast.FunctionDef(name=name, returns=returns):
                    if each.decorator_list and returns is not None:
                        found.attributes[name] = returns
                    else:
                        found.methods[name] = each
                    self._functions.setdefault(name, []).append((module, node.name, each))
                case ast.AnnAssign(target=ast.Name(id=name), annotation=kind):
                    found.attributes[name] = kind

    def _all(self) -> Iterator[tuple[str, str | None, Function]]:
        for same in self._functions.values():
            yield from same

    def _note_attributes(self, found: Class, scope: "Scope") -> None:
        for node in ast.walk(scope.function):
            match node:
                case ast.AnnAssign(target=ast.Attribute() as target, annotation=kind, value=value):
                    pairs = [(target, value)]
                    if is_part(target):
                        found.attributes[target.attr] = kind
                case ast.Assign(targets=[ast.Tuple(elts=ts)], value=ast.Tuple(elts=vs)):
                    pairs = list(zip(ts, vs, strict=True))
                case ast.Assign(targets=[target], value=value):
                    pairs = [(target, value)]
                case _:
                    continue
            for target, value in pairs:
                if isinstance(target, ast.Attribute) and is_part(target) and value is not None:
                    if isinstance(value, ast.Call):
                        found.made.add(target.attr)
                    kind = scope.kind(value)
                    if kind is not None:
                        found.attributes.setdefault(target.attr, kind)

    def _find_commands(self) -> bool:
        """Find commands by what is known of others; returns whether there were more."""
        num = sum(len(each.commands) for each in self.classes.values())
        for _, name, function in self._all():
            if name is not None and function.name in self.classes[name].methods:
                scope = Scope(self, name, function)
                if changes_self(scope):
                    self.classes[name].commands.add(function.name)
        return sum(len(each.commands) for each in self.classes.values()) > num

    def result(self, name: str) -> ast.expr | None:
        """What a module's function returns."""
        found = [node for _, cls, node in self._functions.get(name, ()) if cls is None]
        return found[0].returns if found else None

    def commanded(self) -> Iterator[tuple[str, str, set[str]]]:
        """Each function, by module and name, with the owners that it commands."""
        for module, name, function in self._all():
            scope = Scope(self, name, function)
            owners = {owner for call, owner in scope.commands() if not scope.is_own(call, owner)}
            yield module, function.name, owners


class Scope:
    """What the names in a function stand for."""

    def __init__(self, room: Room, cls: str | None, function: Function) -> None:
        self.room, self.cls, self.function = room, cls, function
        arguments = (*function.args.args, *function.args.kwonlyargs)
        self._names: dict[str, ast.expr | None] = {a.arg: a.annotation for a in arguments}
        if cls is not None:
            self._names["self"] = ast.Name(cls)
        for _ in range(2):
            for node in ast.walk(function):
                self._bind_by(node)

    def _bind_by(self, node: ast.AST) -> None:
        match node:
            case ast.Assign(targets=[target], value=value):
                self._bind(target, self.kind(value))
            case ast.AnnAssign(target=target, annotation=kind):
                self._bind(target, kind)
            case ast.NamedExpr(target=target, value=value):
                self._bind(target, self.kind(value))
            case ast.For(target=target, iter=many) | ast.comprehension(target=target, iter=many):
                self._bind(target, item(self.kind(many)))

    def _bind(self, target: ast.expr, kind: ast.expr | None) -> None:
        match target, kind:
            case ast.Name(id=name), ast.expr():
                self._names.setdefault(name, kind)
            case ast.Tuple(elts=targets), ast.Subscript(slice=ast.Tuple(elts=kinds)):
                for each, its in zip(targets, kinds, strict=False):
                    self._bind(each, its)

    def kind(self, expression: ast.expr) -> ast.expr | None:
        """The annotation of an expression, as far as it is plain to see."""
        match expression:
            case ast.Name(id=name):
                return self._names.get(name)
            case ast.Attribute(value=value, attr=name):
                holder = self.room.classes.get(head(self.kind(value)) or "")
                return None if holder is None else holder.attributes.get(name)
            case ast.Subscript(value=value):
                return item(self.kind(value))
            case ast.Call():
                return self._result(expression)
            case ast.IfExp(body=body, orelse=other):
                return self.kind(body) or self.kind(other)
            case ast.ListComp(elt=element) | ast.GeneratorExp(elt=element):
                kind = self.kind(element)
                return None if kind is None else ast.Subscript(ast.Name("list"), kind)
        return None

    def _result(self, call: ast.Call) -> ast.expr | None:
        match call.func:
            case ast.Name(id=name) if name in self.room.classes:
                return call.func
            case ast.Name(id=name) if name in _LISTS and call.args:
                return self.kind(call.args[0])
            case ast.Name(id=name):
                return self.room.result(name)
            case ast.Attribute(value=value, attr="values"):
                kind = item(self.kind(value))
                return None if kind is None else ast.Subscript(ast.Name("list"), kind)
            case ast.Attribute(value=value, attr="get" | "pop"):
                return item(self.kind(value))
            case ast.Attribute(value=value, attr=name):
                holder = self.room.classes.get(head(self.kind(value)) or "")
                method = None if holder is None else holder.methods.get(name)
                return None if method is None else method.returns
        return None

    def commands(self) -> Iterator[tuple[ast.Attribute, str]]:
        """The calls of commands in the function, each with the class that is commanded."""
        for node in ast.walk(self.function):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                name = head(self.kind(node.func.value)) or ""
                holder = self.room.classes.get(name)
                if holder is not None and node.func.attr in holder.commands:
                    yield node.func, name

    def is_own(self, call: ast.Attribute, owner: str) -> bool:
        """Whether a command does not count: its object owns nothing, or is one's own."""
        if not self.room.classes[owner].is_owner or owner == self.cls:
            return True
        parts = [node for node in ast.walk(call.value) if isinstance(node, ast.Attribute)]
        if self.cls is None or not parts or not is_part(parts[-1]):
            return False
        own = parts[-1].attr
        return own.startswith("_") and own in self.room.classes[self.cls].made


def changes_self(scope: Scope) -> bool:
    """Whether a method changes what its object has, by itself or by a command."""
    for node in ast.walk(scope.function):
        match node:
            case ast.Assign(targets=targets) | ast.Delete(targets=targets):
                if any(is_part(each) for target in targets for each in _targets(target)):
                    return True
            case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
                if not isinstance(target, ast.Name) and is_part(target):
                    return True
            case ast.Call(func=ast.Attribute(value=value, attr=method)) if method in MUTATORS:
                known = head(scope.kind(value)) in scope.room.classes
                if not isinstance(value, ast.Name) and is_part(value) and not known:
                    return True
            case ast.Call(func=function, args=[first, *_]) if head(function) in (
                *FUNCTIONS_THAT_MUTATE,
                "next",
            ):
                if is_part(first):
                    return True
    return any(is_part(call.value) for call, _ in scope.commands())


def _targets(target: ast.expr) -> Iterator[ast.expr]:
    """What an assignment changes: attributes and what is in them, no local names."""
    if isinstance(target, ast.Tuple):
        for each in target.elts:
            yield from _targets(each)
    elif isinstance(target, ast.Attribute | ast.Subscript):
        yield target
