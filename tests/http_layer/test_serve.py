from __future__ import annotations

async def test_health(layer):
    client = await layer.connect()
    await client.get("/health")
    answer = await client.answer()
    assert answer.status == 200
    await client.get("/stream?n=2")
    answer = await client.answer()
    assert answer.body == b"data: 0\n\ndata: 1\n\ndata: [DONE]\n\n"
    await client.get("/health", "connection: close")
    answer = await client.answer_to_end()
    print(answer.raw)
    assert answer.status == 200
    client = await layer.connect()
    await client.get("/stream?n=2", version="1.0")
    print(await client.read_all())
    client = await layer.connect()
    await client.get("/fail", version="1.0")
    print(await client.read_all())
    await layer.until_empty()
