"""Faults of one line: where a source file can be made wrong, and how each fault reads.

The parser is tree-sitter's, whose trees of C++ and Python differ in names only; LANGUAGES has them.
"""

import dataclasses
import itertools
import pathlib
import re
from collections.abc import Iterator

import tree_sitter
import tree_sitter_cpp
import tree_sitter_python


@dataclasses.dataclass(frozen=True)
class Language:
    """What the nodes of a language are called, and how an expression or a statement is chosen at run time."""

    parser: tree_sitter.Parser
    calls: str  # node type of a call
    arguments: str  # of its arguments
    members: dict[str, str]  # type of an expression's member access -> the name of its last field
    left_out: tuple[str, ...]  # statements that may be missing
    # Nodes whose inside is no code that runs: types, patterns, what the compiler evaluates.
    quiet: re.Pattern
    expression: str  # with {n}, {wrong} and {right}
    statement: str  # with {n} and {right}: the statement, unless the fault is chosen


CPP = Language(
    parser=tree_sitter.Parser(tree_sitter.Language(tree_sitter_cpp.language())),
    calls="call_expression",
    arguments="argument_list",
    members={"field_expression": "field"},
    left_out=("expression_statement", "continue_statement", "break_statement"),
    quiet=re.compile(
        "template_(argument|parameter)_list|type_descriptor|array_declarator|bitfield_clause|enumerator|decltype|"
        "static_assert_declaration|preproc_(include|def|function_def)|gnu_asm_expression|alignas_qualifier|"
        "requires_clause|attribute_declaration|using_declaration|ERROR"
    ),
    expression="(::mutants::Chosen({n}) ? ({wrong}) : ({right}))",
    statement="{{ if (!::mutants::Chosen({n})) {{ {right} }} }}",
)
PYTHON = Language(
    parser=tree_sitter.Parser(tree_sitter.Language(tree_sitter_python.language())),
    calls="call",
    arguments="argument_list",
    members={"attribute": "attribute"},
    left_out=("expression_statement", "continue_statement", "break_statement", "raise_statement"),
    quiet=re.compile("type|import_statement|import_from_statement|case_pattern|ERROR"),
    expression="(({wrong}) if raggemm_mutants.chosen({n}) else ({right}))",
    statement="if not raggemm_mutants.chosen({n}): {right}",
)
LANGUAGES = {".cc": CPP, ".h": CPP, ".py": PYTHON}

OPERATORS = {
    **{"<": ("<=", ">="), "<=": ("<", ">"), ">": (">=", "<="), ">=": (">", "<"), "==": ("!=",), "!=": ("==",)},
    **{"+": ("-",), "-": ("+",), "*": ("+",), "/": ("*",), "//": ("*",), "%": ("/",), "<<": (">>",), ">>": ("<<",)},
    **{"&": ("|",), "|": ("&",), "^": ("|",), "&&": ("||",), "||": ("&&",), "and": ("or",), "or": ("and",)},
    **{"is": ("is not",), "is not": ("is",), "in": ("not in",), "not in": ("in",)},
}
BINARY = ("binary_expression", "binary_operator", "boolean_operator", "comparison_operator")
UNARY = ("unary_expression", "unary_operator", "not_operator")
NUMBERS = ("number_literal", "integer", "float")
# Calls that are the same with their first two arguments the other way round.
SYMMETRIC = re.compile(
    rb"(min|max|minimum|maximum)(<\w+>)?$|^_mm\d*_(and|or|xor|add|mul|mullo|cmpeq|fn?m(add|sub))_\w+$"
    rb"|(^|::)(Fma|Mul|Add|Sum|Product)$"
)
FLIPPED = {"true": "false", "false": "true", "True": "False", "False": "True"}


@dataclasses.dataclass(frozen=True)
class Fault:
    """One fault: the bytes [start, end) of a file read `wrong` instead of `right`."""

    path: str  # in the checkout
    line: int  # of its start, from 1
    start: int
    end: int
    right: str
    wrong: str  # "" where a statement is left out
    # Set in the value of a C++ constant: [start, end) of its word constexpr, which becomes const.
    constant: tuple[int, int] | None = None
    in_constexpr: bool = False  # in a function that a C++ compiler may evaluate

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.change}"

    @property
    def change(self) -> str:
        """What is wrong, without the place."""
        right, wrong = (re.sub(r"\s+", " ", text) for text in (self.right, self.wrong))
        return f"{right}  ->  {wrong or 'left out'}"


def _replaced(node: tree_sitter.Node, inner: tree_sitter.Node, text: bytes) -> str:
    """The text of node with `text` in the place of inner, which lies in it."""
    whole, offset = node.text, node.start_byte
    return (whole[: inner.start_byte - offset] + text + whole[inner.end_byte - offset :]).decode()


def _numbers(text: str) -> Iterator[str]:
    digits = re.fullmatch(r"(\d+)((?:\.\d*)?(?:[a-zA-Z]*))", text)
    if digits is not None:
        yield f"{int(digits[1]) + 1}{digits[2]}"
        if int(digits[1]) > 0:
            yield f"{int(digits[1]) - 1}{digits[2]}"


def _fields(scope: tree_sitter.Node, language: Language) -> dict[bytes, set[bytes]]:
    """By text of an expression: the members of it that a function names."""
    found: dict[bytes, set[bytes]] = {}
    for node in _below(scope):
        if node.type in language.members:
            field = node.child_by_field_name(language.members[node.type])
            found.setdefault(node.children[0].text, set()).add(field.text)
    return found


def _below(node: tree_sitter.Node) -> Iterator[tree_sitter.Node]:
    yield node
    for child in node.children:
        yield from _below(child)


def _wrong_binary(node: tree_sitter.Node) -> Iterator[str]:
    left, *operators, right = node.children[0], *node.children[1:-1], node.children[-1]
    if len(node.named_children) != 2:  # a chain of comparisons
        return
    name = " ".join(operator.type for operator in operators)
    for other in OPERATORS.get(name, ()):
        yield f"{left.text.decode()} {other} {right.text.decode()}"
    if name not in ("<", "<=", ">", ">=", "==", "!=", "<<", ">>", "is", "is not", "in", "not in"):
        yield left.text.decode()
        yield right.text.decode()


def _wrong_call(node: tree_sitter.Node, language: Language) -> Iterator[str]:
    arguments = node.child_by_field_name("arguments")
    if arguments is None or arguments.type != language.arguments:
        return
    plain = [child for child in arguments.named_children if child.type not in ("keyword_argument", "comment")]
    pairs = list(itertools.pairwise(plain))
    for one, two in pairs[1:] if SYMMETRIC.search(node.children[0].text) else pairs:
        if one.text != two.text:
            between = node.text[one.end_byte - node.start_byte : two.start_byte - node.start_byte]
            swapped = two.text + between + one.text
            offset = node.start_byte
            yield (node.text[: one.start_byte - offset] + swapped + node.text[two.end_byte - offset :]).decode()


def _wrong(node: tree_sitter.Node, language: Language, fields: dict[bytes, set[bytes]]) -> Iterator[str]:
    """What an expression reads where it is wrong."""
    text = node.text.decode()
    if node.type in BINARY:
        yield from _wrong_binary(node)
    elif node.type in UNARY and node.children[0].type in ("-", "!", "not", "~"):
        yield node.children[1].text.decode()
    elif node.type in NUMBERS:
        yield from _numbers(text)
    elif node.type in FLIPPED:
        yield FLIPPED[text]
    elif node.type == "conditional_expression":
        first, _, second = (child for child in node.named_children if child.type != "comment")
        chosen = (node.named_children[1], second) if language is CPP else (first, second)
        yield from (branch.text.decode() for branch in chosen)
    elif node.type == language.calls:
        yield from _wrong_call(node, language)
    elif node.type in language.members:
        field = node.child_by_field_name(language.members[node.type])
        for other in sorted(fields.get(node.children[0].text, set()) - {field.text}):
            yield _replaced(node, field, other)


def _is_written(node: tree_sitter.Node) -> bool:
    """True where an expression is assigned to, taken the address of, called or part of a larger name."""
    parent = node.parent
    if parent is None:
        return True
    is_first = parent.children[0].id == node.id
    assigned = parent.type in ("assignment_expression", "assignment", "augmented_assignment") and is_first
    part = parent.type in ("update_expression", "pointer_expression", "call_expression", "call", "field_expression")
    return assigned or (part and is_first) or parent.type in ("keyword_argument", "del_statement")


def _statement(node: tree_sitter.Node, language: Language) -> bool:
    """True for statements that may be left out: no docstring, and in Python no name's first value."""
    if node.type not in language.left_out:
        return False
    if language is CPP:
        parent = node.parent
        inside = parent.type in ("compound_statement", "case_statement", "else_clause")
        return inside or node in (parent.child_by_field_name("body"), parent.child_by_field_name("consequence"))
    return node.type != "expression_statement" or node.children[0].type in ("call", "augmented_assignment")


def _constant(node: tree_sitter.Node) -> tuple[int, int] | None:
    """Where the word constexpr stands, if the node is part of the value of such a variable."""
    while node is not None and node.type not in ("compound_statement", "function_definition", "lambda_expression"):
        if node.type in ("declaration", "field_declaration"):
            words = [child for child in node.children if child.text == b"constexpr"]
            return (words[0].start_byte, words[0].end_byte) if words else None
        node = node.parent
    return None


def _in_constexpr(node: tree_sitter.Node) -> bool:
    while node is not None and node.type != "function_definition":
        node = node.parent
    return node is not None and any(child.text == b"constexpr" for child in node.children)


def _decided_early(node: tree_sitter.Node, child: tree_sitter.Node) -> bool:
    """True for what a C++ compiler decides itself: conditions of if constexpr, labels of cases."""
    if node.type == "if_statement":
        return child.type == "condition_clause" and any(word.text == b"constexpr" for word in node.children)
    return node.type == "case_statement" and child == node.child_by_field_name("value")


def _in_one_line(right: str, wrong: str) -> bool:
    """True where one line differs, and `wrong` may stand in one line: it has no comment of a line, no long string."""
    lines = right.splitlines(), wrong.splitlines()
    if not wrong or len(lines[0]) == len(lines[1]) == 1:
        return True
    differ = len(lines[0]) == len(lines[1]) and sum(x != y for x, y in zip(*lines, strict=True)) == 1
    return differ and not re.search(r'//|#|"""', wrong)


def faults_of(root: pathlib.Path, path: str) -> list[Fault]:
    """Every fault of a file."""
    language = LANGUAGES[pathlib.Path(path).suffix]
    source = (root / path).read_bytes()
    # Macros that stand where the parser expects nothing become blanks, which keep all places.
    parsed = re.sub(rb"\b(RAGGEMM_(UNROLL|INLINE)|ABSL_FLAG\(.*)", lambda m: b" " * len(m[0]), source)
    found: list[Fault] = []

    def add(node: tree_sitter.Node, wrong: str) -> None:
        right = source[node.start_byte : node.end_byte].decode()
        if not _in_one_line(right, wrong):
            return
        place = (node.start_point[0] + 1, node.start_byte, node.end_byte)
        compiled = (_constant(node), _in_constexpr(node)) if language is CPP else ()
        found.append(Fault(path, *place, right, re.sub(r"\s*\n\s*", " ", wrong), *compiled))

    def walk(node: tree_sitter.Node, fields: dict[bytes, set[bytes]]) -> None:
        if language.quiet.fullmatch(node.type):
            return
        if node.type == "function_definition":
            fields = _fields(node, language)
        if _statement(node, language):
            add(node, "")
        elif node.is_named and not _is_written(node):
            for wrong in _wrong(node, language, fields):
                add(node, wrong)
        for child in node.children:
            if not _decided_early(node, child):
                walk(child, fields)

    walk(language.parser.parse(parsed).root_node, {})
    return found
