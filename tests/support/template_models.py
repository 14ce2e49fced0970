"""Models that differ in their chat template alone."""

from pathlib import Path

from tests.support.server import model_source


def link_model(folder: Path, template: str | None, source: str = "tiny-qwen3") -> None:
    """Make ``folder`` a model that shares the files of ``source``, with a chat template of its own, or none beside."""
    folder.mkdir(parents=True)
    for path in model_source(source).iterdir():
        if path.name != "chat_template.jinja":
            (folder / path.name).symlink_to(path)
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
