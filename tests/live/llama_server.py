"""llama.cpp's own HTTP server, from the xllamacpp wheel: ``llama_server.py MODEL PORT SLOTS``."""

import signal
import sys


def main(model: str, port: int, slots: int) -> None:
    """Serve until SIGTERM; the address on stdout says that the server is ready."""
    import xllamacpp

    rules = xllamacpp.CommonParams()
    rules.model.path = model
    rules.hostnames = ["127.0.0.1"]
    rules.port = port
    rules.n_parallel = slots
    rules.n_ctx = 1024 * slots
    rules.cpuparams.n_threads = rules.cpuparams_batch.n_threads = 1
    rules.endpoint_metrics = rules.endpoint_slots = rules.warmup = True
    rules.cache_prompt = False
    rules.cache_ram_mib = 0
    rules.fit_params = False
    server = xllamacpp.Server(rules)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    signal.sigwait({signal.SIGTERM, signal.SIGINT})


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
