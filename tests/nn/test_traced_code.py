"""Code that Paddle turns into graphs is such as every version of Paddle can read."""

import ast
import math

from conftest import ROOT

BRANCHES = (ast.If, ast.For, ast.While)


def test_no_annotated_name_is_assigned_in_a_branch():
    """Paddle 2.6 makes a function of each branch, in which it declares the names nonlocal.

    Python allows that of no annotated name. What follows an early return is a branch, too.
    """
    functions = traced()
    names = {function.name for function in functions}
    assert names >= {"forward", "logits", "features", "run_layers", "fast_net", "run_one_by_one"}
    for function in functions:
        nodes = [*ast.walk(function)]
        returns = [node.lineno for node in nodes if isinstance(node, ast.Return)]
        branches = [node for node in nodes if isinstance(node, BRANCHES)]
        in_branches = {inner for branch in branches for inner in ast.walk(branch)}
        for node in nodes:
            if isinstance(node, ast.AnnAssign):
                is_safe = node not in in_branches and node.lineno < min(returns, default=math.inf)
                assert is_safe, f"{function.name}: {ast.unparse(node)}"


def traced() -> list[ast.FunctionDef]:
    """Return the `forward` of each net, and what it calls: by name, so rather too many."""
    paths = sorted((ROOT / "paddle_mnist").rglob("*.py"))
    statements = [node for path in paths for node in ast.parse(path.read_text()).body]
    classes = {node.name: node for node in statements if isinstance(node, ast.ClassDef)}
    functions = {node.name: node for node in statements if isinstance(node, ast.FunctionDef)}

    def is_net(node: ast.ClassDef) -> bool:
        bases = [ast.unparse(base) for base in node.bases]
        return "nn.Layer" in bases or any(is_net(classes[b]) for b in bases if b in classes)

    nets = [node for node in classes.values() if is_net(node)]
    methods = [node for net in nets for node in net.body if isinstance(node, ast.FunctionDef)]
    found = [method for method in methods if method.name == "forward"]
    for function in found:  # which grows
        for node in ast.walk(function):
            called = []
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self":
                called = [method for method in methods if method.name == node.attr]
            elif isinstance(node, ast.Call) and ast.unparse(node.func) in functions:
                called = [functions[ast.unparse(node.func)]]
            found += [one for one in called if one not in found]
    return found
