"""Documents of known faults: read, checked, written.

They lie in ``known/`` of the repository, and inside the package where it is installed from a wheel.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import cache
from pathlib import Path
from typing import Any

import onnx.parser
from onnx import ModelProto, TypeProto
from pydantic import ValidationError

from optvet.engine.work.native import native_code
from optvet.engine.work.sandbox import Sandbox
from optvet.engine.work.trials.inner_values import infer
from optvet.graph.pattern import parse_pattern, search
from optvet.graph.types import inferred_types
from optvet.spec.errors import InputError, UnknownName, UsageError
from optvet.spec.foreign import files_in, read_text
from optvet.spec.parsing import read_toml
from optvet.spec.records.known import AffectedRange, KnownFault, is_affected
from optvet.spec.toml_lines import join_with_dots, line_of
from optvet.spec.validation_words import words_of
from optvet.spec.words import printable, toml_value

_PACKAGE = Path(__file__).parents[2]
_PLACES = (_PACKAGE / "known", _PACKAGE.parents[1] / "known")


def known_folder() -> Path:
    """The folder of the documents that come with optvet."""
    return next((place for place in _PLACES if place.is_dir()), _PLACES[0])


@cache
def shipped() -> tuple[KnownFault, ...]:
    """The faults that come with optvet, by id."""
    return tuple(read_faults([known_folder()], trusted=True))


def faults_of(places: Iterable[Path] | None) -> list[KnownFault]:
    """Known faults: those that come with optvet, then those of the user.

    Raises:
        UsageError: A place does not exist, or a fault has an id of one that comes with optvet.
    """
    named = list(places or ())
    for place in named:
        if not place.exists():
            raise UsageError(f"--known {place}: there is no such file or folder; check the path")
    own = read_faults(named)
    ids = {fault.id for fault in shipped()}
    if twice := [fault.id for fault in own if fault.id in ids]:
        raise UsageError(f"--known: {twice[0]!r} is the id of a fault that comes with optvet")
    return [*shipped(), *own]


def read_faults(places: Iterable[Path], *, trusted: bool = False) -> list[KnownFault]:
    """The faults of files, and of folders of files, by id.

    Models of documents that are not ``trusted`` are read in a worker first.

    Raises:
        InputError: A file is no such document, or two have one id.
    """
    files = [f for p in places for f in (_documents_in(p) if p.is_dir() else [p])]
    found: dict[str, tuple[KnownFault, Path]] = {}
    for file in files:
        fault = _read_form(file)
        if fault.id in found:
            raise InputError(f"{file}: {fault.id!r} is the id of {found[fault.id][1]} too")
        found[fault.id] = fault, file
    with nullcontext() if trusted or not found else native_code(__name__) as call:
        for fault, file in found.values():
            what = f"{file}: reading its model"
            problem, forms = call(what, look_at_fault, fault) if call else look_at_fault(fault)
            _forms[_question(fault)] = forms
            if problem:
                raise InputError(f"{file}: {problem}")
    return [found[name][0] for name in sorted(found)]


def _documents_in(folder: Path) -> list[Path]:
    return files_in(folder, lambda file: file.suffix == ".toml")


def _read_form(file: Path) -> KnownFault:
    """The fault of one file whose form is right.

    Raises:
        InputError: It is no such document; the message names file and line.
    """
    values = read_toml(file, "record")
    try:
        return KnownFault.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        where = join_with_dots(first["loc"])
        line = line_of(read_text(file), first["loc"])
        place = f"{file}:{line}" if line else str(file)
        raise InputError(f"{place}: {where or 'document'}: {words_of(first)}") from error


_forms: dict[tuple[str, ...], tuple[str, ...]] = {}
"""Forms of triggers in models, by these: what was read in a worker is not read here again."""


def _question(fault: KnownFault) -> tuple[str, ...]:
    return fault.trigger, *(one.model for one in fault.every_form)


def look_at_fault(fault: KnownFault) -> tuple[str, tuple[str, ...]]:
    """What is wrong with a document whose form is right, and the form that each model shows.

    The first is empty if nothing is.
    """
    forms: list[str] = []
    try:
        pattern = parse_pattern(fault.trigger)
    except ValueError as error:
        return f"trigger: {error}", ()
    for number, one in enumerate(fault.every_form):
        place = f"forms.{number - 1}.model" if number else "model"
        try:
            model = onnx.parser.parse_model(one.model)
            onnx.checker.check_model(model)
        except (onnx.parser.ParseError, onnx.checker.ValidationError) as error:
            return f"{place}: {str(error).splitlines()[0]}", ()
        found = search(pattern, model, with_declared(inferred_types(model) or {}, model))
        matches = found.places
        if not matches:
            whose = f"the model of forms.{number - 1}" if number else "the document's own model"
            if not found.complete:
                words = f"trigger: its search takes too many steps in {whose}; write it narrower"
                return words, ()
            return f"trigger: it does not fit {whose}", ()
        if matches[0].form in forms:
            return f"{place}: its form, {matches[0].form}, was dated above", ()
        forms.append(matches[0].form)
    return "", tuple(forms)


def ranges_of(fault: KnownFault, form: str) -> list[AffectedRange] | None:
    """The releases that show a fault in a form of its trigger; None if that was not dated."""
    every, question = fault.every_form, _question(fault)
    known = _forms[question] if question in _forms else look_at_fault(fault)[1]
    dated = (one.affected for one, name in zip(every, known, strict=True) if name == form)
    return next(dated, None)


def shows_in_form(fault: KnownFault, version: str, form: str) -> bool:
    """Whether a release shows a fault in a form of its trigger.

    Of a form that was not dated it is assumed if the release shows another form.
    """
    ranges = ranges_of(fault, form)
    return fault.affects(version) if ranges is None else is_affected(ranges, version)


def with_declared(types: Mapping[str, TypeProto], model: ModelProto) -> dict[str, TypeProto]:
    """Types by name, with those that the model declares where there are no others."""
    graph = model.graph
    declared = {v.name: v.type for v in (*graph.input, *graph.output, *graph.value_info)}
    return {**declared, **types}


def types_in_worker(model: ModelProto) -> dict[str, TypeProto]:
    """Types of inner values; shape inference may crash, so a worker does it."""
    with Sandbox(jobs=1, preload=("onnx", infer.__module__)) as sandbox:
        known = sandbox.call(infer, model.SerializeToString(), True).value or {}
    types = {name: TypeProto.FromString(data) for name, data in known.items()}
    return with_declared(types, model)


def fault_named(name: str, faults: Sequence[KnownFault]) -> KnownFault:
    """The fault of that id; UnknownName if there is none."""
    for fault in faults:
        if fault.id == name:
            return fault
    raise UnknownName("fault", name, [f.id for f in faults], "(see: optvet known list)")


def to_toml(fault: KnownFault) -> str:
    """The document, in the order of its fields."""
    values = fault.model_dump(mode="json", by_alias=True)
    ranges, forms = values.pop("affected"), values.pop("forms")
    lines = [f"{key} = {_toml(value)}" for key, value in values.items() if value not in ("", [])]
    lines += _ranges_in_toml("affected", ranges)
    for form in forms:
        lines += ["", "[[forms]]", f"model = {_toml(form['model'])}"]
        lines += _ranges_in_toml("forms.affected", form["affected"])
    return "\n".join(lines) + "\n"


def _ranges_in_toml(name: str, ranges: Iterable[Mapping[str, Any]]) -> list[str]:
    lines = []
    for one in ranges:
        lines += ["", f"[[{name}]]"]
        lines += [f"{key} = {_toml(value)}" for key, value in one.items() if value is not None]
    return lines


def _toml(value: Any) -> str:
    if (
        isinstance(value, str)
        and "\n" in value
        and "'''" not in value
        and printable(value) == value
    ):
        return f"'''\n{value.strip(chr(10))}\n'''"
    return toml_value(value)


def grouped_by_package(faults: Iterable[KnownFault]) -> Mapping[str, list[KnownFault]]:
    """Faults by package, in alphabetical order."""
    found: dict[str, list[KnownFault]] = {}
    for fault in sorted(faults, key=lambda f: (f.package, f.id)):
        found.setdefault(fault.package, []).append(fault)
    return found
