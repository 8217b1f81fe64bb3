"""The public names: one table, loaded on first use."""

from __future__ import annotations

import re
import runpy
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path
from types import ModuleType, SimpleNamespace

import pytest

import rocketmq_aio

PACKAGE = Path(rocketmq_aio.__file__).parent
NAMES: list[str] = vars(rocketmq_aio)["__all__"]
MAKE_STUB = runpy.run_path(str(PACKAGE.parent / "tools" / "make_stub.py"))


@pytest.mark.parametrize("package", MAKE_STUB["PACKAGES"])
def test_a_stub_is_made_from_the_table_of_names(package: str) -> None:
    assert len(NAMES) > 100
    assert MAKE_STUB["stub_file"](package).read_text() == MAKE_STUB["stub"](package)


def test_version_equals_the_project_metadata() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text())["project"]
    assert rocketmq_aio.__version__ == project["version"]


def test_the_long_description_has_no_links_into_the_repository(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interface = ModuleType("interface")  # hatchling's: it is there only where packages are built
    monkeypatch.setattr(interface, "MetadataHookInterface", SimpleNamespace, raising=False)
    monkeypatch.setitem(sys.modules, "hatchling.metadata.plugin.interface", interface)
    root = PACKAGE.parent
    hook = runpy.run_path(str(root / "tools" / "metadata_hook.py"))["ReadmeHook"]
    metadata: dict[str, dict[str, str]] = {}
    hook(root=root).update(metadata)
    text = metadata["readme"]["text"]

    targets = re.findall(r"\]\(([^)]*)\)", text)
    assert targets
    assert all(target.startswith("https://") for target in targets)
    assert "| Getting started |" in text
    assert "[Getting started](docs/" in (root / "README.md").read_text()


@pytest.mark.parametrize("name", NAMES)
def test_every_name_can_be_loaded(name: str) -> None:
    assert getattr(rocketmq_aio, name) is not None
    assert name in dir(rocketmq_aio)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="'rocketmq_aio' has no attribute 'Prodcer'"):
        vars(rocketmq_aio)["__getattr__"]("Prodcer")


def test_names_load_from_a_zip_file(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "package.zip", "w") as archive:
        for file in PACKAGE.rglob("*.py"):
            archive.write(file, file.relative_to(PACKAGE.parent))
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path / 'package.zip')!r});"
        "import rocketmq_aio; from rocketmq_aio import *; print(rocketmq_aio.__file__, Message)"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.startswith(str(tmp_path / "package.zip").encode())


def test_a_producer_loads_no_consumer_and_no_administration() -> None:
    program = (
        "import sys; from rocketmq_aio import Message, Producer;"
        "print([n for n in sys.modules if n.startswith(('rocketmq_aio.consumer.push.consumer',"
        " 'rocketmq_aio.consumer.pop.consumer', 'rocketmq_aio.admin'))])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, check=True)
    assert done.stdout.strip() == b"[]"
