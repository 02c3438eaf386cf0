"""One reader of `sheaf-bench readers`: worker.py READER JSON.

The JSON has `dir` (a folder for files), `records` and `size` (of what is read), `address` and other facts of the store,
and `seed`. A reader opens what it reads, works once so that everything is warm, and then writes one line of JSON: its
facts, or {"missing": why} where something is not installed. Each line of the input is a number of seconds: the reader
works for about that long, at least once, and answers with the units that it has read, the seconds, and the seconds of
its processors in this process. The end of the input ends it.
"""

import gc
import json
import sys
import time


def turn(step, seconds, ahead):
    for _ in range(ahead):
        step()
    units, cpu, begin = 0, time.process_time(), time.perf_counter()
    while True:
        units += step()
        wall = time.perf_counter() - begin
        if wall >= seconds:
            return {"units": units, "wall": wall, "cpu": time.process_time() - cpu}


def say(out, facts):
    out.write(json.dumps(facts) + "\n")
    out.flush()


def main(name, config):
    out, sys.stdout = sys.stdout, sys.stderr  # what libraries print is no answer
    try:
        import ours
        import peers
        step, facts = {**peers.READERS, **ours.READERS}[name](config)
    except ImportError as err:
        say(out, {"missing": f"not measured: {err}"})
        return
    ahead = facts.pop("ahead", 0)
    if step:
        step()
    gc.collect()
    say(out, facts)
    for line in sys.stdin:
        say(out, turn(step, float(line), ahead))


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]))
