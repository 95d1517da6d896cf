"""What tests share lies in builders and conftest.py: no module of tests is imported by another one."""

import ast
from pathlib import Path

HERE = Path(__file__).parent


def test_no_test_is_imported_by_another_file() -> None:
    found = set()
    for path in (*HERE.rglob("*.py"), *(HERE.parent / "bench").rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_bytes())):
            if isinstance(node, ast.ImportFrom):
                names = [node.module or "", *(alias.name for alias in node.names)]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            else:
                continue
            modules = {part for name in names for part in name.split(".") if part.startswith("test_")}
            found |= {(str(path.relative_to(HERE.parent)), module) for module in modules}
    assert found == set()
