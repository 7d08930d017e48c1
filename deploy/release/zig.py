"""zig's C++ compiler, with the one flag of hatch_build.py that zig writes otherwise: instruction sets of aarch64.

python deploy/release/zig.py -target aarch64-linux-musl ARGUMENTS      # as a compiler: CXX in wheels.py
"""

import subprocess
import sys

OTHERWISE = {"-march=armv8.2-a+dotprod": "-mcpu=generic+v8_2a+dotprod"}

if __name__ == "__main__":
    arguments = [OTHERWISE.get(word, word) for word in sys.argv[1:]]
    done = subprocess.run([sys.executable, "-m", "ziglang", "c++", *arguments], check=False)  # noqa: S603
    sys.exit(done.returncode)
