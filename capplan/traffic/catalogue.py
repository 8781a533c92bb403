"""Public traces: where they are, under which licence, and the checksum that tells they are whole.

With ``CAPPLAN_DATA`` set to a folder that has a trace, it comes from there (a gzipped copy too),
checked the same way; otherwise it is downloaded once into a cache.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import unquote, urlsplit

from capplan.bundled import shared_data_path
from capplan.schema import DataError
from capplan.traffic.readers import files

_AZURE = (
    "https://raw.githubusercontent.com/Azure/AzurePublicDataset/"
    "b469a113cedca53ddc3bdea71a143dc4b7d8700c/data/"
)
_MOONCAKE = (
    "https://raw.githubusercontent.com/kvcache-ai/Mooncake/"
    "3b5a594133958449a1feaf1c9e0fc1b553e34a28/FAST25-release/traces/"
)
_BURSTGPT = (
    "https://media.githubusercontent.com/media/HPMLL/BurstGPT/"
    "5d93d820d9b6bee4e26914df003e5713538164ae/data/"
)
_BAILIAN = (
    "https://media.githubusercontent.com/media/alibaba-edu/qwen-bailian-usagetraces-anon/"
    "0b4273a1d8a83935b9d9356e78f95c31f2ac64cf/"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicTrace:
    """A trace of a public collection.

    Attributes
    ----------
    name
        Name to ask for it by.
    what
        What it holds, in a phrase.
    format
        Format of :func:`~capplan.traffic.readers.read_trace`.
    url
        Public home of one unaltered version.
    sha256
        Checksum of the file's content, uncompressed.
    size_bytes
        Size of that content.
    licence, attribution
        Terms of use and whom to name.
    local
        Path below the folder that ``CAPPLAN_DATA`` names.
    """

    name: str
    what: str
    format: str
    url: str
    sha256: str
    size_bytes: int
    licence: str
    attribution: str
    local: str

    @property
    def file_name(self) -> str:
        """Name of the file at its public home."""
        return unquote(Path(urlsplit(self.url).path).name)


_SPLITWISE = 'Patel et al., "Splitwise", ISCA 2024'
_FAST25 = 'Qin et al., "Mooncake", FAST 2025'
_ATC25 = 'Wang et al., "KVCache Cache in the Wild", USENIX ATC 2025'
_KDD25 = 'Wang et al., "BurstGPT", KDD 2025'

TRACES: tuple[PublicTrace, ...] = (
    PublicTrace(
        name="azure-2023-conv",
        what="19,366 conversation requests of one hour, Azure, November 2023",
        format="azure",
        url=f"{_AZURE}AzureLLMInferenceTrace_conv.csv",
        sha256="2f1e5b666d4e3055fdbba98598ce2ec307767b9064e03e2fa46676dbcc7d0bf8",
        size_bytes=719_188,
        licence="CC-BY-4.0",
        attribution=_SPLITWISE,
        local="traces/azure-llm-2023/AzureLLMInferenceTrace_conv.csv",
    ),
    PublicTrace(
        name="azure-2023-code",
        what="8,819 code completion requests of one hour, Azure, November 2023",
        format="azure",
        url=f"{_AZURE}AzureLLMInferenceTrace_code.csv",
        sha256="54e9a6d2a4bd06ba1e060304b900abbc74cbea53de96506e60fe5bb4f2277fb6",
        size_bytes=320_117,
        licence="CC-BY-4.0",
        attribution=_SPLITWISE,
        local="traces/azure-llm-2023/AzureLLMInferenceTrace_code.csv",
    ),
    PublicTrace(
        name="mooncake-conversation",
        what="12,031 requests of one hour of Kimi with prefix blocks, sampled",
        format="mooncake",
        url=f"{_MOONCAKE}conversation_trace.jsonl",
        sha256="b8cbb061a85206d729d91cdc2981f43c9e0d99209dce588d3af5f7934408b9df",
        size_bytes=3_029_533,
        licence="Apache-2.0",
        attribution=_FAST25,
        local="traces/mooncake-fast25/conversation_trace.jsonl",
    ),
    PublicTrace(
        name="mooncake-synthetic",
        what="3,993 Poisson arrivals with public long-context prompts and prefix blocks",
        format="mooncake",
        url=f"{_MOONCAKE}synthetic_trace.jsonl",
        sha256="bd070915a98fc0ed264d7cfef2ce746002eb3076a695ec31ba2674c0111ec131",
        size_bytes=1_136_313,
        licence="Apache-2.0",
        attribution=_FAST25,
        local="traces/mooncake-fast25/synthetic_trace.jsonl",
    ),
    PublicTrace(
        name="burstgpt-1",
        what="requests of two months of a campus service on GPT-3.5 and GPT-4, failures included",
        format="burstgpt",
        url=f"{_BURSTGPT}BurstGPT_1.csv",
        sha256="4bb3783693d0a435686fbfc885615d2349bd067239079fa4b749f2e679e12122",
        size_bytes=52_283_111,
        licence="CC-BY-4.0",
        attribution=_KDD25,
        local="traces/burstgpt/BurstGPT_1.csv",
    ),
    PublicTrace(
        name="bailian-coder",
        what="two hours of coding requests of one Qwen instance with prefix blocks",
        format="bailian",
        url=f"{_BAILIAN}qwen_coder_blksz_16.jsonl",
        sha256="3d74974cebb7bccb69b1ca6ea210a44d9a3033443c0271ed015327284dea1aff",
        size_bytes=132_054_902,
        licence="Apache-2.0",
        attribution=_ATC25,
        local="traces/bailian/qwen_coder_blksz_16.jsonl",
    ),
    PublicTrace(
        name="bailian-thinking",
        what="two hours of reasoning requests of one Qwen instance with prefix blocks",
        format="bailian",
        url=f"{_BAILIAN}qwen_thinking_blksz_16.jsonl",
        sha256="41ac36d9d1b54d084eeb6b05e9d142ba9d02f8bf79cfc9fff418d8ab7cdee906",
        size_bytes=27_901_454,
        licence="Apache-2.0",
        attribution=_ATC25,
        local="traces/bailian/qwen_thinking_blksz_16.jsonl",
    ),
)
"""Sources: the repositories in the URLs; checksums of Git LFS files are those of their pointers."""


def list_traces() -> tuple[PublicTrace, ...]:
    """Return the public traces that :func:`get_trace` knows.

    >>> [trace.name for trace in list_traces()][:2]
    ['azure-2023-conv', 'azure-2023-code']
    """
    return TRACES


def get_trace(name: str, *, cache: Path | None = None) -> Path:
    """Return the path of a public trace, from ``CAPPLAN_DATA``, the cache or its home.

    Parameters
    ----------
    name
        A name of :func:`list_traces`.
    cache
        Folder to keep it in; None: the user's cache folder.

    Raises
    ------
    ValueError
        For an unknown name.
    DataError
        When the file is not what its checksum says.
    ConnectionError
        When it cannot be downloaded.
    """
    known = {trace.name: trace for trace in TRACES}
    if name not in known:
        msg = f"name: one of {', '.join(known)}, got {name!r}"
        raise ValueError(msg)
    return fetch(known[name], cache=cache)


def fetch(trace: PublicTrace, *, cache: Path | None = None) -> Path:
    """Return the path of a trace's file; see :func:`get_trace`."""
    local = _local(trace)
    return local if local is not None else _download(trace, cache)


def _local(trace: PublicTrace) -> Path | None:
    root = shared_data_path()
    if root is None:
        return None
    for path in (root / trace.local, root / f"{trace.local}.gz"):
        if path.is_file():
            found = _content_sha256(path)
            if found != trace.sha256:
                raise DataError(f"a file with SHA-256 {trace.sha256}", where=path, value=found)
            return path
    return None


def _content_sha256(path: Path) -> str:
    digest = hashlib.sha256()
    with files.opened(path) as stream:
        while part := stream.read(1 << 20):
            digest.update(part)
    return digest.hexdigest()


def _download(trace: PublicTrace, cache: Path | None) -> Path:
    import pooch

    pooch.get_logger().setLevel("WARNING")
    folder = cache if cache is not None else Path(pooch.os_cache("capplan"))
    try:
        path = pooch.retrieve(
            trace.url,
            known_hash=f"sha256:{trace.sha256}",
            fname=trace.file_name,
            path=folder,
        )
    except ValueError as err:
        rule = f"a file with SHA-256 {trace.sha256}"
        raise DataError(rule, where=trace.url, value="another one") from err
    except OSError as err:
        msg = f"{trace.url}: cannot be downloaded: {err}"
        raise ConnectionError(msg) from err
    return Path(path)
