"""What converters provide: a model in another format, by stages, each of which can be run."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from optvet.spec.generics import OptionsT, OptionsT_contra
from optvet.spec.runtime_protocols import Session
from optvet.spec.types import Artifact, StageKind


@dataclass(frozen=True)
class ConversionStage:
    """One step of a converter.

    Attributes:
        name: The converter's own name of it.
        kind: What it does.
        format: Format of the artifact after it; a runtime that accepts it runs the artifact.
        tolerance: Of a lossy stage, the error that it declares, as a share of an output's largest
            value over the inputs that the source is meant for.
    """

    name: str
    kind: StageKind
    format: str
    tolerance: float | None = None


@dataclass(frozen=True)
class Factory:
    """Which function of a Python file makes a source; ``handle`` of its artifact.

    Attributes:
        name: Name of the function, which takes no arguments.
        seed: Seeds everything random before it is called.
    """

    name: str
    seed: int = 0


@dataclass(frozen=True)
class SourceFacts:
    """How a source is called.

    Attributes:
        inputs: Example inputs by name, in the order of its arguments.
        others: Further inputs that it must be right on.
        dynamic: Axes of which the size may change, by input: the name of each size by axis.
        labels: Outputs that name classes. Where the classes are booleans, a converted model may
            name them 0 and 1: ONNX's classifiers have integers and texts as labels.
        columns: Outputs of one number for each row, which a converted model may give as a vector or
            as a column.
        tables: Inputs that are tables. A column of one that holds whole numbers may be a category,
            so no fraction is drawn for it.
        has_counterparts: Whether it has all outputs that a converted model may have. Else those
            behind its own are not compared: of a classifier that gives labels alone, a model in
            ONNX gives probabilities too.
    """

    inputs: Mapping[str, np.ndarray]
    others: tuple[Mapping[str, np.ndarray], ...] = ()
    dynamic: Mapping[str, Mapping[int, str]] = field(default_factory=dict)
    labels: frozenset[str] = frozenset()
    columns: frozenset[str] = frozenset()
    tables: frozenset[str] = frozenset()
    has_counterparts: bool = True


@runtime_checkable
class Converter(Protocol[OptionsT]):
    """Makes a model of another format.

    Attributes:
        name: Unique among converters; ``--via NAME``.
        consumes: Formats of the sources that it takes.
        produces: Format of its last artifact.
        preload: Modules worth importing once in the server from which workers are forked.
        options: Its options with their defaults; a (frozen) pydantic model.
    """

    name: str
    consumes: frozenset[str]
    produces: str
    preload: Sequence[str]
    options: OptionsT

    def version(self) -> str:
        """Version of the library underneath; raises ImportError if it is absent."""
        ...

    def stages(self, options: OptionsT) -> Sequence[ConversionStage]:
        """The stages in order, of which the last one makes what the converter is for."""
        ...

    def convert(self, source: Artifact, options: OptionsT, folder: Path) -> Iterable[Artifact]:
        """One artifact per stage, in order, each as soon as it is made.

        Called in a worker process, alone in it. An artifact has its ``data``, or a ``path`` in
        ``folder``, which is empty; one with neither cannot be run, and the stage is then blamed
        together with the next. Whatever is raised means that the stage refuses the source.
        """
        ...


@runtime_checkable
class TellsSource(Protocol[OptionsT_contra]):
    """Optional part of a runtime: it runs sources of converters, and tells how they are called.

    Attributes:
        source_formats: Formats of sources by the suffix of their files, such as ``.py``.
    """

    source_formats: Mapping[str, str]

    def source_facts(self, artifact: Artifact, options: OptionsT_contra) -> SourceFacts:
        """How the source is called. Called in a worker process.

        Raises:
            InputError: The source cannot be loaded, or there is no example of its inputs.
        """
        ...


@dataclass(frozen=True)
class LabelScores:
    """The scores from which a source chooses labels: the class of the largest is the label.

    Attributes:
        scores: A number for each class along the last axis; the other axes are the label's.
        classes: The labels that they stand for.
        output: The output of the source that holds them, in whatever form; empty if none does.
    """

    scores: np.ndarray
    classes: np.ndarray
    output: str = ""


@dataclass(frozen=True)
class SourceOperand:
    """What an operator of a source reads for one of its arguments.

    Attributes:
        name: The argument, as the framework calls it.
        place: Place, in ``SourceInside.values``, of a value; None if it is none of them.
        input: Name of an input of the source.
        parameter: Name of a parameter.
        constant: A number, a text or a list of numbers that is written in the program.
    """

    name: str
    place: int | None = None
    input: str = ""
    parameter: str = ""
    constant: object = None


@dataclass(frozen=True)
class SourceValue:
    """A value inside a source, in one run.

    Attributes:
        operator: What computes it, as the framework calls it.
        value: The value.
        reads: Places, in ``SourceInside.values``, of the values that it is computed from; inputs
            and parameters are not among them.
        constant: Whether it depends on parameters alone.
        module: Path of the part of the source that it belongs to, such as ``encoder.0``.
        line: File and line of the user's code.
        alike: The operator of ONNX that computes the same, with its attributes; empty if unknown.
        attributes: Those attributes.
        unset: Attributes of that operator that the source leaves as they are by default.
        inputs: The arguments that are inputs of that operator, in its order; empty if unknown.
        output: Which output of that operator it is.
        operands: What is given for each argument, as far as it is known.
        settings: What it is given besides tensors that is not the default, such as an estimator's
            parameters, the most telling first.
        open_ties: Whether the framework leaves open which of equal elements comes first, along the
            axis ``dim`` or the last one, and the value tells that. Of a table, the answer for a row
            with such elements is open.
        open_order: Whether the framework leaves open in which order the elements come.
        sorted_operand: Name of the operand that must be sorted along its last axis, or else the
            framework leaves the value open.
        undefined: Why the framework leaves the value open on what it reads, in words such as "a
            matrix that is not positive definite"; empty where it defines it.
        decides: Place of the condition, of what a branch gives; else None.
        overwrites: Place of the same memory's value from before, of what an operator wrote there;
            else None.
        iterations: How often the body of a loop ran, of what a loop gives; else None.
        is_view: Whether it is a part of what it reads, or that in another shape.
    """

    operator: str
    value: np.ndarray
    reads: tuple[int, ...] = ()
    constant: bool = False
    module: str = ""
    line: str = ""
    alike: str = ""
    attributes: Mapping[str, object] = field(default_factory=dict)
    unset: frozenset[str] = frozenset()
    inputs: tuple[str, ...] = ()
    output: int = 0
    operands: tuple[SourceOperand, ...] = ()
    settings: Mapping[str, object] = field(default_factory=dict)
    open_ties: bool = False
    open_order: bool = False
    sorted_operand: str = ""
    undefined: str = ""
    decides: int | None = None
    overwrites: int | None = None
    iterations: int | None = None
    is_view: bool = False


@dataclass(frozen=True)
class SourceInside:
    """All values of one run in the order of computation, and the parameters by name.

    ``outputs`` are the places of the outputs among the values; None for one that is none of them.
    """

    values: tuple[SourceValue, ...]
    outputs: tuple[int | None, ...] = ()
    parameters: Mapping[str, np.ndarray] = field(default_factory=dict)


@dataclass(frozen=True)
class SourcePart:
    """A part of a source that can be a source of its own.

    Attributes:
        name: Its path in the source, such as ``encoder.0``; empty for the whole.
        size: How much it holds, in a unit of the runtime's own.
        modules: Paths of what it holds, itself included, as ``SourceValue.module`` names them.
    """

    name: str
    size: int
    modules: frozenset[str]


@dataclass(frozen=True)
class PartScript:
    """What a script of a written part is made of, as Python.

    Attributes:
        tool: What converts, as people call it.
        needs: Distributions that have to be installed.
        imports: Import statements.
        source: Statements that set ``given`` (arrays in the order of the inputs) and ``expected``
            (arrays of the outputs), from ``part()`` and ``example_inputs`` of the part's file.
        convert: Statements that write the model in ONNX to the path ``target``; of another format,
            that return what ``run`` takes.
        flat: Whether outputs are compared without their shapes.
        run: Of another format than ONNX: statements that return the outputs of ``model`` on the
            arrays ``feeds``, a dictionary in the order of the inputs, as a dictionary in order.
    """

    tool: str
    needs: Sequence[str]
    imports: str
    source: str
    convert: str
    flat: bool = False
    run: str = ""


@runtime_checkable
class SplitsSource(Protocol[OptionsT_contra]):
    """Optional part of a runtime: it takes sources apart, to reduce what a conversion breaks.

    ``feeds`` are the inputs that show the fault. ``parts`` and ``write_part`` are called in worker
    processes.
    """

    def parts(
        self, artifact: Artifact, feeds: Mapping[str, np.ndarray], options: OptionsT_contra
    ) -> Sequence[SourcePart]:
        """The parts that are used on these inputs, the whole among them."""
        ...

    def write_part(
        self,
        artifact: Artifact,
        feeds: Mapping[str, np.ndarray],
        options: OptionsT_contra,
        name: str,
        folder: Path,
    ) -> str:
        """Write a part to ``folder``, with what it is called with on ``feeds`` as its example.

        Returns:
            The name of a Python file there, whose function ``part`` makes it. It needs nothing but
            the files in the folder and the framework.
        """
        ...

    def script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        """Converts a written part by the library itself, without optvet; None if it cannot.

        The script stands beside the part. It exits with 1 if an output differs, or the model cannot
        be loaded or run, and its last line is then "the fault is there"; with 2 if the converter
        refuses; with 3 if nothing is there to run the model; else with 0.
        """
        ...


@dataclass(frozen=True)
class SourceOperator:
    """One operator of a source that is a graph.

    Attributes:
        name: As ``SourceValue.operator`` names operators, or the function that the user calls.
        line: File and line of the user's code, as ``SourceValue.line``; empty if unknown.
        reads: Places of the operators whose results it reads.
    """

    name: str
    line: str
    reads: tuple[int, ...]


@runtime_checkable
class CutsSource(Protocol[OptionsT_contra]):
    """Optional part of a runtime: sources are graphs, and any operators of one can be a source.

    ``feeds`` are the inputs that show the fault. The first two methods are called in worker
    processes, ``write_operators`` up to hundreds of times for one source.
    """

    def operators(
        self, artifact: Artifact, feeds: Mapping[str, np.ndarray], options: OptionsT_contra
    ) -> Sequence[SourceOperator]:
        """The operators in the order of execution; none if this source is no graph."""
        ...

    def write_operators(
        self,
        artifact: Artifact,
        feeds: Mapping[str, np.ndarray],
        options: OptionsT_contra,
        kept: Sequence[int],
        folder: Path,
    ) -> str:
        """Write the operators at the places ``kept``, as ``SplitsSource.write_part`` writes a part.

        What they read of others is an input, with its value on ``feeds`` as the example; what
        others or callers read of them is an output.

        Raises:
            InputError: These operators cannot be written.
        """
        ...

    def operators_script(self, converter: str, options: Mapping[str, object]) -> PartScript | None:
        """Converts written operators, as ``SplitsSource.script`` converts a part."""
        ...


@dataclass(frozen=True)
class SourceStep:
    """One operator of a source that is made for a hunt.

    Attributes:
        operator: As the framework calls it.
        dtype: Element type of its sample inputs, as numpy calls it.
        sample: Which of its sample inputs are used: any number; they are counted through.
        without: Settings that it has not, of those that ``source_settings`` tells.
    """

    operator: str
    dtype: str
    sample: int
    without: frozenset[str] = frozenset()


@runtime_checkable
class MakesSources(Protocol):
    """Optional part of a runtime: it makes sources for hunts in the converters that take them.

    Both methods are called in worker processes.

    Attributes:
        source_preload: Modules that making them needs, worth importing once.
    """

    source_preload: Sequence[str]

    def source_operators(self) -> Mapping[str, Sequence[str]]:
        """Element types that an operator has sample inputs of, the usual one first, by operator.

        Raises:
            MissingLibrary: What the sample inputs come from is not installed.
        """
        ...

    def make_source(
        self,
        steps: Sequence[SourceStep],
        dynamic: bool,
        folder: Path,
        feeds: Mapping[str, np.ndarray] | None = None,
    ) -> str | None:
        """Write a source that takes the steps one after the other.

        The first tensor that a step reads is the result of the step before. With ``dynamic`` sizes
        of its inputs are left open. Equal steps give equal sources; ``feeds`` replace its example.

        Returns:
            The name of a Python file in ``folder``, as ``SplitsSource.write_part`` writes it; None
            if the steps do not fit each other, or cannot be written.
        """
        ...


class ConverterExtras:
    """Optional members of a converter."""

    registers: str = ""
    """The functions of its library that register converters of the user, in words."""

    def convert_on(
        self,
        source: Artifact,
        options: Any,
        folder: Path,
        inputs: Sequence[Mapping[str, np.ndarray]],
    ) -> Iterable[Artifact]:
        """As ``convert``, which is then not called, with inputs, such as for ranges.

        They are those that the source is meant for, under the names that ``source`` gives them: the
        example first, no edge values and no other sizes.
        """
        raise NotImplementedError

    def part_script(self, options: Any) -> PartScript:
        """A script that converts ``model``, an ``onnx.ModelProto``, without optvet.

        Of a converter that takes ONNX, beside a reduced source. Its ``source`` is left empty.
        """
        raise NotImplementedError

    def taken_operators(self) -> Collection[str]:
        """The only operators that it takes, of which hunts make sources.

        As ``MakesSources`` names them. Called in a worker process; the library may name some that
        are no operators there.
        """
        raise NotImplementedError


class SourceExtras:
    """Optional members of a runtime of sources (``TellsSource``)."""

    source_risks: Mapping[str, str] = {}
    """By suffix, what loading such a file may do; other files need ``--trust``.

    The end of a sentence "it …"; empty where the file holds data alone. A ``.py`` file is code, and
    is executed since the user names a function of it.
    """

    def load_perturbed(self, artifact: Artifact, options: Any, seed: int, inside: bool) -> Session:
        """As ``load``, with every weight moved by at most a unit in its last place: its noise.

        With ``inside``, the result of every operator is moved by its own rounding instead. What is
        exact stays: whole numbers among weights, and results that ``may_be_rounded`` denies.
        """
        raise NotImplementedError

    def load_double(self, artifact: Artifact, options: Any) -> Session:
        """As ``load``, in float64, to measure its rounding: it takes the same inputs."""
        raise NotImplementedError

    def inside(
        self,
        artifact: Artifact,
        feeds: Mapping[str, np.ndarray],
        options: Any,
        seed: int | None,
    ) -> SourceInside:
        """The inner values of one run, to find where a conversion breaks.

        With a ``seed``, of one moved as ``load_perturbed`` moves. Called in a worker process. No
        verdict depends on it.
        """
        raise NotImplementedError

    def source_settings(self, steps: Sequence[SourceStep]) -> Sequence[Mapping[str, str]]:
        """What is not usual about each step of a made source, by name, as a script says it.

        Hunts leave out what a fault does not need; what is left tells causes apart. Those in
        ``SourceStep.without`` are not there any more. Called in a worker process.
        """
        raise NotImplementedError

    def last_operators(self) -> Collection[str]:
        """Operators of made sources whose results no other reads, such as a classifier.

        Called in a worker process.
        """
        return ()


class SessionExtras:
    """Optional members of the session of a converter's source."""

    def label_scores(self, feeds: Mapping[str, np.ndarray]) -> Mapping[str, LabelScores]:
        """The scores by which outputs that name classes choose labels, as far as they are known.

        A label is undecided only where these are tied. Called in a worker process where a converted
        model gives other labels.
        """
        return {}
