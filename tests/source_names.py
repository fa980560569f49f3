"""What the names in a module's source stand for, whatever they were imported as."""

from __future__ import annotations

import ast
from typing import Dict, List

# Functions that import the module that their first argument names.
IMPORTERS = {"__import__", "importlib.import_module", "importlib.__import__", "builtins.__import__"}


class Names:
    """What the names of a module stand for: `import numpy as np` makes `np.load` numpy's."""

    def __init__(self, tree: ast.AST) -> None:
        self._means: Dict[str, str] = {}
        self.imported: List[str] = []  # modules, and what was taken out of them
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for name in node.names:
                    self.imported.append(name.name)
                    first = name.name.partition(".")[0]
                    self._means[name.asname or first] = name.name if name.asname else first
            elif isinstance(node, ast.ImportFrom) and node.level == 0:
                for name in node.names:
                    full = f"{node.module}.{name.name}"
                    self.imported.append(full)
                    self._means[name.asname or name.name] = full

    def of(self, node: ast.AST) -> str:
        """The full dotted name of an expression; empty if it has none. `getattr(x, "y")` is x.y."""
        if isinstance(node, ast.Name):
            return self._means.get(node.id, node.id)
        if isinstance(node, ast.Attribute):
            owner = self.of(node.value)
            return f"{owner}.{node.attr}" if owner else ""
        if isinstance(node, ast.Call) and self.of(node.func) == "getattr" and len(node.args) > 1:
            owner, attribute = self.of(node.args[0]), text_of(node.args[1])
            return f"{owner}.{attribute}" if owner and attribute else ""
        if isinstance(node, ast.Call) and self.of(node.func) in IMPORTERS and node.args:
            return text_of(node.args[0])
        return ""


def text_of(node: ast.AST) -> str:
    """A string in the source, or what an f-string begins with; empty for anything else."""
    if isinstance(node, ast.JoinedStr) and node.values:
        return text_of(node.values[0])
    return str(node.value) if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
