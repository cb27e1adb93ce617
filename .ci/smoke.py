"""Tries an installed optvet as a user would; ``.ci/smoke`` runs it, for an extra or ``bare``.

Nothing but the standard library is imported here: what is tried is the command.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

COMMAND = str(Path(sysconfig.get_path("scripts"), "optvet"))
MODEL = "zoo:digits-cnn"
BARE = {"onnxoptimizer", "onnxruntime"}
"""Optimizers that every environment has; the bare one tries them."""


def main(extra: str) -> int:
    """The exit code: 1 if something is not as it should be, which is printed."""
    version = document("--version", "--json", "-")
    print(f"  {version['optvet']} on {version['python']}, onnx {version['onnx']}")
    plugins = document("plugins", "--json", "-")["plugins"]
    wrong = [*unusable(plugins, extra), *unhealthy(), *unvetted(plugins, extra)]
    for line in wrong:
        print(f"  wrong: {line}")
    return bool(wrong)


def unusable(plugins: list[dict[str, Any]], extra: str) -> list[str]:
    """Plugins that cannot be used although their libraries should be there."""
    brought = {extra} if extra != "all" else {e for p in plugins if (e := extra_of(p))}
    wrong = []
    for plugin in plugins:
        who, problem = f"{plugin['family']} {plugin['name']}", plugin["problem"] or ""
        if extra_of(plugin) in brought:
            wrong.append(f"{who}: {problem}")
        elif problem and not extra_of(plugin) and "optvet env make" not in problem:
            wrong.append(f"{who}: {problem}")
    print(f"  {sum(not p['problem'] for p in plugins)} of {len(plugins)} plugins can be used")
    return wrong


def extra_of(plugin: dict[str, Any]) -> str:
    """The extra that a plugin lacks; empty if none."""
    return (plugin["extra"] or "").partition("[")[2].rstrip("]")


def unhealthy() -> list[str]:
    """What ``optvet doctor`` calls broken."""
    checks = document("doctor", "--json", "-", codes=(0, 1))["checks"]
    for check in checks:
        if check["status"] == "warning":
            print(f"  warning: {check['message']}; {check['cure']}")
    return [f"{c['name']}: {c['message']}" for c in checks if c["status"] == "broken"]


def unvetted(plugins: list[dict[str, Any]], extra: str) -> list[str]:
    """Optimizers that cannot vet a small model that comes with optvet."""
    wrong = []
    for plugin in plugins:
        if plugin["family"] != "optimizer" or plugin["problem"]:
            continue
        if extra != "bare" and plugin["name"] in BARE:
            continue
        answer = document(
            "vet", MODEL, "--optimizer", plugin["name"], "--json", "-", codes=(0, 1, 4, 5)
        )
        print(f"  vet {MODEL} with {plugin['name']}: {answer['verdict']}")
        if not answer["verdict"]:
            wrong.append(f"no verdict on {plugin['name']}")
    return wrong


def document(*arguments: str, codes: tuple[int, ...] = (0,)) -> dict[str, Any]:
    """What a command prints, which has to be JSON."""
    done = subprocess.run(
        [COMMAND, *arguments], capture_output=True, text=True, timeout=600, check=False
    )
    if done.returncode not in codes:
        sys.exit(
            f"optvet {' '.join(arguments)} exits {done.returncode}\n{done.stderr}{done.stdout}"
        )
    return json.loads(done.stdout)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
