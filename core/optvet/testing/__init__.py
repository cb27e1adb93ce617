"""For plugin authors: conformance suites, and planted faults to test with."""

from optvet.testing.comparators import check_comparator, hostile_outputs, pretend_model
from optvet.testing.converters import check_converter, check_source_runtime
from optvet.testing.generators import check_mutator, check_pool
from optvet.testing.optimizer_conformance import check_optimizer
from optvet.testing.optimizers import FILLERS, Planted, PlantedOptions
from optvet.testing.reporters import check_reporter, pretend_files, pretend_report
from optvet.testing.runtime_conformance import check_runtime
from optvet.testing.sources import check_dataset, check_executor, check_model_source
from optvet.testing.studies import check_study

__all__ = [
    "FILLERS",
    "Planted",
    "PlantedOptions",
    "check_comparator",
    "check_converter",
    "check_dataset",
    "check_executor",
    "check_model_source",
    "check_mutator",
    "check_optimizer",
    "check_pool",
    "check_reporter",
    "check_runtime",
    "check_source_runtime",
    "check_study",
    "hostile_outputs",
    "pretend_files",
    "pretend_model",
    "pretend_report",
]
