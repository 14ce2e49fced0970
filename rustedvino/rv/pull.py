"""``rv pull``: a model from a Hugging Face hub into the models folder."""

import os
import re
import shutil
from pathlib import Path
from typing import Any, Final

from rustedvino.rv.command import Command
from rustedvino.rv.errors import EXIT_OK, RvError, Unreachable, UsageError
from rustedvino.rv.text import counted, safe, size

UNNEEDED: Final = (
    "*.safetensors",
    "*.gguf",
    "*.h5",
    "*.msgpack",
    "*.pt",
    "*.pth",
    "*.ckpt",
    "pytorch_model*",
    ".gitattributes",
)
"""Weights of other frameworks that some repositories hold beside those of OpenVINO."""
SPARE_BYTES: Final = 64 * 2**20
_REPOSITORY: Final = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+", re.ASCII)


def pull(command: Command) -> int:
    """``rv pull``: download, look whether all is there, offer to add it.

    Files that are complete are not fetched again; within a file the hub's client goes on after a lost connection.
    """
    options = command.options
    if not _REPOSITORY.fullmatch(options.repository):
        raise UsageError(f"{options.repository!r} is not OWNER/NAME")
    if options.add and options.no_add:
        raise UsageError("--add and --no-add cannot both be given")
    config = command.target.require_config("pull")
    if config.models_dir is None:
        raise RvError(f"{config.path} does not say where models are (models_dir)", code="config_invalid")
    model_id = options.name or options.repository.partition("/")[2]
    if Path(model_id).name != model_id or model_id in (".", ".."):
        raise UsageError(f"{model_id!r} cannot be a model id: it must be the plain name of a folder")
    folder = config.models_dir / model_id
    _download(command, options.repository, options.revision, folder)
    kind = _inspect(folder, model_id)
    command.screen.line((model_id, "bold"), f" is complete ({kind}): {folder}")
    _offer(command, model_id, registered=model_id in config.model_ids)
    return EXIT_OK


def _download(command: Command, repository: str, revision: str | None, folder: Path) -> None:
    os.environ.setdefault("HF_HUB_DISABLE_TELEMETRY", "1")
    if not command.screen.err_is_terminal:
        os.environ["HF_HUB_DISABLE_PROGRESS_BARS"] = "1"  # read when it is imported
    try:
        import huggingface_hub
    except ImportError as error:
        hint = "pip install huggingface_hub"
        raise RvError("downloading needs the package huggingface_hub", code="not_installed", hint=hint) from error
    try:
        info = huggingface_hub.HfApi().model_info(repository, revision=revision, files_metadata=True)
        needed = _check_files(repository, info)
        _check_space(folder, needed)
        command.screen.note(
            f"{repository} ({str(info.sha)[:12]}): {counted(len(needed), 'file')}, {size(sum(needed.values()))}"
        )
        huggingface_hub.snapshot_download(
            repository, revision=info.sha, local_dir=folder, ignore_patterns=list(UNNEEDED)
        )
    except RvError:
        raise
    except Exception as error:
        raise _explained(error, repository, revision) from error


def _check_files(repository: str, info: Any) -> dict[str, int]:
    """Files that will be there, with their sizes. Raises RvError when they are no OpenVINO model."""
    import fnmatch

    found = {
        sibling.rfilename: sibling.size or 0
        for sibling in info.siblings or []
        if not any(fnmatch.fnmatch(sibling.rfilename, pattern) for pattern in UNNEEDED)
    }
    outside = [name for name in found if Path(name).is_absolute() or ".." in Path(name).parts]
    if outside:
        message = f"{repository} has a file that would leave the models folder: {safe(outside[0])}"
        raise RvError(message, code="bad_repository")
    if not any(name.endswith((".xml", ".onnx")) for name in found):
        raise RvError(
            f"{repository} holds no OpenVINO model: there is no .xml file in it",
            code="not_openvino",
            hint="the organisation OpenVINO has many models in this form, and `optimum-cli export openvino` makes it",
        )
    return found


def _check_space(folder: Path, needed: dict[str, int]) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        free = shutil.disk_usage(folder).free
    except OSError as error:
        raise RvError(f"{folder} cannot be made: {error.strerror}", code="not_writable") from error
    present = sum((folder / name).stat().st_size for name in needed if (folder / name).is_file())
    missing = sum(needed.values()) - present + SPARE_BYTES
    if missing > free:
        message = f"there is no room for it in {folder}: {size(missing)} more are needed, {size(free)} are free"
        raise RvError(message, code="disk_full")


def _explained(error: Exception, repository: str, revision: str | None) -> RvError:
    """What went wrong with a download, in words."""
    from huggingface_hub import constants, errors

    endpoint = constants.ENDPOINT
    again = "complete files are kept: the same command fetches the rest"
    if isinstance(error, errors.GatedRepoError):
        hint = f"accept its terms at {endpoint}/{repository}, and give a token in HF_TOKEN"
        return RvError(f"{repository} is gated: it is only for those who accepted its terms", code="gated", hint=hint)
    if isinstance(error, errors.RevisionNotFoundError):
        return RvError(f"{repository} has no revision {revision!r}", code="revision_not_found")
    if isinstance(error, errors.RepositoryNotFoundError):
        hint = "a private one needs a token in HF_TOKEN"
        return RvError(f"there is no model {repository} at {endpoint}", code="repository_not_found", hint=hint)
    if isinstance(error, errors.OfflineModeIsEnabled):
        hint = "HF_HUB_OFFLINE is set in the environment"
        return Unreachable("downloads are switched off", code="offline", hint=hint)
    if isinstance(error, errors.LocalEntryNotFoundError) or _is_of_network(error):
        hint = "HF_ENDPOINT names another hub, HTTPS_PROXY a way to it"
        return Unreachable(f"{endpoint} cannot be reached: is this machine offline?", code="offline", hint=hint)
    if isinstance(error, errors.HfHubHTTPError):
        status = getattr(getattr(error, "response", None), "status_code", None)
        return RvError(
            f"{endpoint} refused it{'' if status is None else f' with status {status}'}", code="hub_error", hint=again
        )
    if isinstance(error, OSError) and error.filename:
        return RvError(f"{error.filename} cannot be written: {error.strerror}", code="not_writable", hint=again)
    return RvError(
        f"the download failed: {safe(str(error)) or type(error).__name__}", code="download_failed", hint=again
    )


def _is_of_network(error: Exception) -> bool:
    """Whether an error says that the hub was not reached. Which HTTP library raised it is the hub's client's affair."""
    names = {base.__name__ for base in type(error).__mro__}
    return not names.isdisjoint({"TransportError", "ConnectionError", "TimeoutError"})


def _inspect(folder: Path, model_id: str) -> str:
    """The kind of a model whose files are all there. Raises RvError."""
    from rustedvino.hub.model_files import ModelProblem, inspect_folder

    try:
        return str(inspect_folder(folder).kind)
    except ModelProblem as error:
        message = f"{model_id} was downloaded, but cannot be served: {error}"
        raise RvError(message, code="model_unusable", hint=f"its files are in {folder}") from error


def _offer(command: Command, model_id: str, *, registered: bool) -> None:
    from rustedvino.rv.models import add_model

    options, screen = command.options, command.screen
    if registered:
        screen.note((f"it is registered already: `rv load {model_id}` loads it", "dim"))
        return
    wanted = options.add or options.yes
    if not wanted and not options.no_add and screen.can_ask:
        wanted = screen.ask(f"Add {model_id} to the server and load it?")
    if wanted:
        add_model(command, {"model_id": model_id})
    else:
        screen.note((f"`rv add {model_id}` registers and loads it", "dim"))
