"""page_store.py DIRECTORY

Serves a directory as the bucket `corpus` of a real object store, for the commands of a page.
Detaches once the store answers, and leaves the environment that reaches it in the file `.store`.
"""

import json
import os
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from lib.place import Place
from lib.stores import Moto

read, write = os.pipe()
if os.fork():
    os.close(write)
    sys.exit(0 if os.read(read, 1) else 1)
with Place() as place, Moto(place) as store:
    store.upload("corpus", sys.argv[1])
    reach = {"AWS_ENDPOINT_URL_S3": store.endpoint, "AWS_REGION": "us-east-1"}
    keys = {"AWS_ACCESS_KEY_ID": store.access_key, "AWS_SECRET_ACCESS_KEY": store.secret_key}
    Path(".store").write_text(json.dumps({**reach, **keys}))
    os.write(write, b"!")
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    while True:
        time.sleep(60)
