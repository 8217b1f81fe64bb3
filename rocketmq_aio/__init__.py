"""An asyncio client for Apache RocketMQ, over the brokers' native remoting protocol."""

# Names are loaded on first use: a producer needs no consumers, and loading everything takes three
# times as long.  The stub `__init__.pyi` is the table of names, here and for type checkers.
from importlib import import_module
from typing import Any, Final

__version__ = "0.1.0"


def _modules_of_names() -> dict[str, str]:
    loader: Any = __spec__.loader  # reads from a zip file, too: Spark may ship the package in one
    stub: bytes = loader.get_data(f"{__path__[0]}/__init__.pyi")
    words = stub.decode().replace("(", "").split()  # "from", module, "import", name, "as", name
    return {words[at + 3]: words[at + 1] for at, word in enumerate(words) if word == "from"}


_MODULES: Final = _modules_of_names()
__all__ = sorted(_MODULES)  # pyright: ignore[reportUnsupportedDunderAll]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(_MODULES[name]), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
