"""Models of the Hugging Face Hub: ``huggingface:ORG/REPO[@REVISION][/PATH/FILE.onnx]``.

Any repository with an ONNX file will do; a name without ORG is one of ``onnxmodelzoo``, where the
ONNX Model Zoo lives since its files left GitHub. A branch may move, so each reference is resolved
to a commit first: the files lie under that commit, are compared with the checksums that the hub
lists for it, and the model says which it is. Without a network the commit that the same reference
last stood for is used, if its files are in the cache.

Of several ONNX files that one is meant which is named like the repository, else ``model.onnx`` or
``onnx/model.onnx``, as exporters put it; anything else must be named.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from optvet.plugin import ModelCard, ModelSource, hookimpl

_OPSET = re.compile(r"[-_](?:Opset)?(\d{1,2})(?:[-_](?:int8|qdq|timm|torch_hub))?$")


class HuggingFaceSource:
    """The hub at ``$HF_ENDPOINT``, by default huggingface.co.

    Attributes:
        needs_network: Listing it asks a server, so only who names it gets a list.
    """

    name = "huggingface"
    environment: Mapping[str, str] = {"HF_HUB_DISABLE_TELEMETRY": "1"}
    wants = ("huggingface_hub",)
    needs_network = True

    def models(self) -> Iterable[ModelCard]:
        """The repositories of the ONNX Model Zoo; any other can be had all the same.

        Raises:
            UsageError: The hub cannot be reached.
            MissingLibrary: huggingface_hub is not installed.
        """
        from optvet_hf_models.hub import call_library, hub_api
        from optvet_hf_models.references import ZOO

        found = call_library(f"organisation {ZOO}", lambda: list(hub_api().list_models(author=ZOO)))
        return [_card(info) for info in sorted(found, key=lambda info: str(info.id))]

    def fetch(self, reference: str, cache: Path) -> Sequence[Path]:
        """The ONNX file that ``reference`` names, with its external data beside it.

        Raises:
            UsageError: There is no such repository, revision or file, or it is not available.
            InputError: What came is not what the hub lists.
            MissingLibrary: huggingface_hub is needed and not installed.
            InfrastructureError: The cache cannot be written.
        """
        from optvet_hf_models.files import external_files, fetch_file
        from optvet_hf_models.listing import choose_file, fetch_listing
        from optvet_hf_models.references import parse_reference

        wanted = parse_reference(reference)
        home = cache / "huggingface" / wanted.org / wanted.repo
        listing = fetch_listing(wanted, home)
        file = choose_file(wanted, listing)
        path = fetch_file(wanted, listing, file, home)
        for data in external_files(wanted, file, path, listing):
            fetch_file(wanted, listing, data, home)
        return [path]

    def pinned(self, reference: str, cache: Path) -> str:
        """The full reference of what ``fetch`` gave, with commit and file."""
        from optvet_hf_models.listing import choose_file, kept_listing
        from optvet_hf_models.references import parse_reference

        wanted = parse_reference(reference)
        kept = kept_listing(wanted, cache / "huggingface" / wanted.org / wanted.repo)
        if kept is None:
            return f"{self.name}:{reference}"
        return f"{self.name}:{wanted.id}@{kept.commit}/{choose_file(wanted, kept)}"


@hookimpl
def optvet_model_sources() -> Iterable[ModelSource]:
    """The Hugging Face Hub."""
    return [HuggingFaceSource()]


def _card(info: Any) -> ModelCard:
    name = str(info.id)
    opset = _OPSET.search(name)
    extra = {"opset": opset[1]} if opset else {}
    tags = tuple(str(tag) for tag in info.tags or ())
    return ModelCard(name, info.pipeline_tag, "", None, tags, extra)
