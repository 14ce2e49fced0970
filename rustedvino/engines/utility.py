"""The utility worker's engine: short untrusted work under limits, no model."""

from typing import Any, Final

from attrs import asdict

from rustedvino.engines.images import ImageLimits, decode_image
from rustedvino.engines.proofs import ConstraintProofs
from rustedvino.text.probes import probe_template
from rustedvino.text.templates import TemplateSource
from rustedvino.worker import platform
from rustedvino.worker.loop import Delta, unknown_method

ADDRESS_SPACE_BYTES: Final = 1 << 30


class UtilityEngine:
    """Answers calls one at a time; the server ends the process when one takes too long."""

    busy = False

    def __init__(self) -> None:
        platform.limit_resources(address_space_bytes=ADDRESS_SPACE_BYTES)
        self._proofs = ConstraintProofs(address_space_bytes=ADDRESS_SPACE_BYTES)

    def load(self, spec: dict[str, Any]) -> dict[str, Any]:
        """A utility worker has no model."""
        raise unknown_method("load")

    def submit(self, sequence: int, prompt: bytes, options: dict[str, Any]) -> None:
        """A utility worker generates nothing."""
        raise unknown_method("submit")

    def cancel(self, sequence: int) -> None:
        """There is nothing to cancel."""

    def step(self) -> tuple[list[Delta], list[Any]]:
        """There is nothing to step."""
        return [], []

    def call(self, method: str, arguments: dict[str, Any]) -> Any:
        """Answer one of these.

        ``probe_template``: ``source``, ``tool_use``, ``variables`` → the fields of ProbeResult.
        ``decode_image``: ``data``, ``max_pixels`` → ``width``, ``height``, ``data`` (RGB, three bytes a pixel).
        ``prepare_proofs``: nothing → ``load_secs``; import of the runtime and load of the demo model, once.
        ``prove_constraint``: ``constraint`` → ``ready`` (false: prepare first), ``compile_secs``.
        """
        if method == "probe_template":
            source = TemplateSource(arguments["source"], "probe", arguments["tool_use"])
            return asdict(probe_template(source, arguments["variables"]))
        if method == "decode_image":
            image = decode_image(arguments["data"], ImageLimits(max_pixels=arguments["max_pixels"]))
            return {"width": image.width, "height": image.height, "data": image.rgb}
        if method == "prepare_proofs":
            return self._proofs.prepare()
        if method == "prove_constraint":
            return self._proofs.prove(arguments["constraint"])
        raise unknown_method(method)
