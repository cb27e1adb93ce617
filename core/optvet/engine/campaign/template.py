"""The campaign file that ``optvet campaign init`` writes."""

from __future__ import annotations

_TEMPLATE = """\
# What to vet; run it with: optvet campaign run {file}
# Every model is vetted with every optimizer, pipeline, dataset, runtime and comparator.

name = "{name}"

# Files, folders, globs, or models of a source. Paths begin at the folder of this file.
models = ["zoo:digits-*"]
#models = ["models/", "more/**/*.onnx", "zoo:all"]
#exclude = ["*-ir3"]

# `optvet plugins` lists what there is. Without these, the default of each is taken.
#optimizers = ["NAME", "NAME"]
#pipelines = ["default", "all"]
#datasets = ["random", "files:inputs.npz"]
#runtimes = ["NAME"]
#comparators = ["NAME"]

# Store a bundle per finding: the model, its inputs, a script that shows the fault.
#bundles = true

# Findings that are known, and do not make the campaign fail.
#baseline = "known.json"

# What artifacts may take in the store; beyond it, the oldest go.
#store_size = "20G"

# Any option of `optvet vet`, for all jobs.
[vet]
timeout = 120
#limit = 4            # samples per dataset at most
#strategy = "each"    # how culprits are searched; "none" only detects
#reduce = true        # reduce each finding to a minimal model

# Sets of jobs of their own; what one does not say is taken from above. With `via`, jobs are
# conversions: each source is converted by each chain of converters that takes it.
#[[jobs]]
#models = ["sources/", "model.pt2"]
#via = ["NAME", "NAME,NAME"]

# With `precisions`, each job searches for the fewest nodes to keep, as `optvet precision` does.
#[[jobs]]
#precisions = ["fp16", "int8"]
#[jobs.precision]
#require = ["top1_agreement>=0.99"]

#[[jobs]]
#optimizers = ["NAME"]
#pipelines = ["all"]
#[jobs.vet]
#optimizer_options = {{ KEY = "VALUE" }}
"""


def template(name: str) -> str:
    """A campaign file with comments; it can be run as it is."""
    plain = name.replace("\\", "").replace('"', "")
    return _TEMPLATE.format(name=plain, file=f"{plain}.toml")
