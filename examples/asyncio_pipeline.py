"""Two stages of a pipeline as tasks of one event loop.

Many senders, many workers, nothing lost.

    python examples/asyncio_pipeline.py

Works without any preparation, as quickstart.py does. A worker that is cancelled while
it waits gives back what it had got, so that others go on with it.
"""

from __future__ import annotations

import asyncio

import pulsar_ray
import pulsar_ray.asyncio

REQUESTS = 200
WORKERS = 8


async def send_requests(client: pulsar_ray.asyncio.Client) -> None:
    producer = await client.create_producer("asyncio-requests")
    # All of them wait for their receipts at once, and share a few batches.
    await asyncio.gather(*(producer.send(b"%d" % number) for number in range(REQUESTS)))


async def work(requests: pulsar_ray.asyncio.Consumer, results: pulsar_ray.asyncio.Producer) -> None:
    while True:
        request = await requests.receive()
        await results.send(b"%d" % (int(request.data()) ** 2))
        # Only now: a worker that dies before this leaves its request to another.
        await requests.acknowledge(request)


async def main() -> None:
    async with pulsar_ray.asyncio.Client() as client:
        requests = await client.subscribe(
            "asyncio-requests", "workers", consumer_type=pulsar_ray.ConsumerType.Shared
        )
        answers = await client.subscribe("asyncio-results", "collector")
        results = await client.create_producer("asyncio-results")
        workers = [asyncio.create_task(work(requests, results)) for _ in range(WORKERS)]
        await send_requests(client)
        total = 0
        for _ in range(REQUESTS):
            answer = await answers.receive()
            total += int(answer.data())
            await answers.acknowledge(answer)
        for worker in workers:
            worker.cancel()
        await asyncio.gather(*workers, return_exceptions=True)
        print(f"{REQUESTS} requests answered by {WORKERS} workers; the sum of all squares is {total}")


if __name__ == "__main__":
    asyncio.run(main())
