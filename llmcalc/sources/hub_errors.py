"""What went wrong with the hub, in one line that says what can be done."""

from __future__ import annotations

import socket
import ssl
from urllib.parse import urlsplit
from urllib.request import getproxies, proxy_bypass

from llmcalc.errors import InputError, LlmcalcError, MissingError, UnavailableError
from llmcalc.sources.places import Place
from llmcalc.text import safe, shorten

_TOKEN = "set HF_TOKEN, or `hf auth login`"


def explained(
    error: Exception, where: Place, status: int | None, endpoint: str, offline: bool
) -> LlmcalcError:
    """huggingface_hub's error as ours, told by its kind.

    ``status`` is the server's answer, where there was one.
    """
    # by name, so that the library need not be imported to explain it
    kinds = {kind.__name__ for kind in type(error).__mro__}
    if "GatedRepoError" in kinds:
        page = f"{endpoint}/{where.repo}"
        return UnavailableError(
            f"{where} is gated", hint=f"ask for access at {page}, then {_TOKEN}"
        )
    if "RevisionNotFoundError" in kinds:
        return MissingError(
            f"{where.repo} has no revision {shorten(where.revision or '')!r}",
            hint=f"without one: {where.repo}",
        )
    if "RepositoryNotFoundError" in kinds or status == 401:
        return UnavailableError(f"the hub has no {where}, or it is private", hint=_spelling(where))
    if "EntryNotFoundError" in kinds and "LocalEntryNotFoundError" not in kinds:
        what = f"no file {shorten(where.file)!r}" if where.file else "no safetensors"
        return MissingError(
            f"{where} holds {what}", hint=None if where.file else "its config alone can be counted"
        )
    if "HFValidationError" in kinds:
        return InputError(f"{where} is no hub id: {safe(str(error).splitlines()[0])}")
    if "OfflineModeIsEnabled" in kinds or offline:
        missing = f"{where} is not in the local cache, and HF_HUB_OFFLINE is set"
        return UnavailableError(
            missing,
            hint="without it the hub is asked; or name a config.json, a directory or a preset",
        )
    if status == 403:
        return UnavailableError(f"the hub does not let this token see {where}", hint=_TOKEN)
    if status is not None:
        hint = "try again later"
        if status == 429:
            hint = f"too many requests: wait, then try again; {_TOKEN}"
        return UnavailableError(f"the hub answered {status} for {where}", hint=hint)
    return _unreachable(error, where, endpoint)


def _spelling(where: Place) -> str:
    """The nearest names that are known, where there are any."""
    from llmcalc.sources import local, presets

    close = [*presets.close_to(where.repo.rpartition("/")[2]), *local.close_to(where.repo)]
    return f"close: {', '.join(dict.fromkeys(close))}" if close else f"check the spelling; {_TOKEN}"


def _proxied(endpoint: str) -> bool:
    """Whether the environment sends requests to that address through a proxy."""
    parts = urlsplit(endpoint)
    return parts.scheme in getproxies() and not proxy_bypass(parts.hostname or "")


def _unreachable(error: Exception, where: Place, endpoint: str) -> UnavailableError:
    """No answer at all: by name, proxy, certificate, or the connection itself."""
    chain = [error]
    # a chain may lead back to itself
    while (inner := chain[-1].__cause__ or chain[-1].__context__) is not None and len(chain) < 20:
        chain.append(inner)  # type: ignore[arg-type]
    names = {kind.__name__ for each in chain for kind in type(each).__mro__}
    first = chain[-1]  # what went wrong before anything else did
    line = str(first).splitlines()[0] if str(first) else type(first).__name__
    said = safe(shorten(line, 80))
    alone = f", and {where} is not in the local cache"
    if "ProxyError" in names or ("ConnectError" in names and _proxied(endpoint)):
        return UnavailableError(
            f"no connection through the proxy{alone} ({said})",
            hint="it is named by HTTPS_PROXY, HTTP_PROXY, NO_PROXY",
        )
    if any(isinstance(each, ssl.SSLError) for each in chain) or "CERTIFICATE" in said.upper():
        return UnavailableError(
            f"no safe connection to {endpoint}{alone} ({said})",
            hint="SSL_CERT_FILE names other certificates",
        )
    if any(isinstance(each, socket.gaierror) for each in chain):
        return UnavailableError(
            f"the name of {endpoint} is not known to this network{alone} ({said})",
            hint=(
                "check the network and HF_ENDPOINT; or name a config.json, a directory or a preset"
            ),
        )
    return UnavailableError(
        f"the hub cannot be reached{alone} ({said})",
        hint=(
            "check the network, HF_ENDPOINT and proxies; or name a config.json, a directory or a"
            " preset"
        ),
    )
