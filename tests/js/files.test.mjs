// Files, watching and signed URLs through the JS SDK.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { FileNotFoundError, FilesystemEventType, FileType, InvalidArgumentError } from 'e2b'
import { sharedSandbox, waitFor } from './box.mjs'

const shared = sharedSandbox()

test('write and read, in every form', async () => {
  const { files } = shared.box
  const bytes = crypto.getRandomValues(new Uint8Array(60_000))
  for (const opts of [{}, { useOctetStream: true }, { gzip: true }]) {
    const info = await files.write('/tmp/f', bytes.buffer, opts)
    assert.deepEqual([info.path, info.name, info.type], ['/tmp/f', 'f', FileType.FILE])
    for (const read of [{}, { gzip: true }]) {
      assert.deepEqual(await files.read('/tmp/f', { format: 'bytes', ...read }), bytes)
    }
    await files.write('/tmp/e', '', opts)
    assert.equal(await files.read('/tmp/e'), '')
    assert.equal((await files.read('/tmp/e', { format: 'bytes' })).length, 0)
  }
  await files.write('/tmp/blob', new Blob(['blob ü']))
  assert.equal(await (await files.read('/tmp/blob', { format: 'blob' })).text(), 'blob ü')
  const stream = await files.read('/tmp/blob', { format: 'stream' })
  let text = ''
  for await (const part of stream) text += Buffer.from(part).toString()
  assert.equal(text, 'blob ü')
  await files.write([{ path: '/tmp/m1', data: '1' }, { path: '/tmp/m2', data: '2' }])
  assert.equal((await files.read('/tmp/m1')) + (await files.read('/tmp/m2')), '12')
  await assert.rejects(files.read('/tmp/none'), FileNotFoundError)
  await assert.rejects(files.read('/tmp'), InvalidArgumentError)
})

test('a stream of 64 MiB up and down', async () => {
  const { files, commands } = shared.box
  let left = 64
  const data = new ReadableStream({ pull(c) { left-- > 0 ? c.enqueue(new Uint8Array(1 << 20).fill(left)) : c.close() } })
  await files.write('/tmp/large', data, { useOctetStream: true })
  assert.equal((await commands.run('stat -c %s /tmp/large')).stdout, `${64 << 20}\n`)
  let size = 0
  for await (const part of await files.read('/tmp/large', { format: 'stream' })) size += part.length
  assert.equal(size, 64 << 20)
})

test('entries', async () => {
  const { files, commands } = shared.box
  await commands.run('mkdir -p /tmp/d/sub; echo 123 > /tmp/d/f; ln -s f /tmp/d/l')
  assert.deepEqual((await files.list('/tmp/d')).map((e) => e.name), ['f', 'l', 'sub'])
  assert.equal((await files.list('/tmp/d', { depth: 2 })).length, 3)
  const info = await files.getInfo('/tmp/d/f')
  assert.deepEqual([info.size, info.permissions, info.owner, info.group], [4, '-rw-r--r--', 'user', 'user'])
  assert.ok(Math.abs(info.modifiedTime - Date.now()) < 60_000)
  assert.equal((await files.getInfo('/tmp/d/l')).symlinkTarget, '/tmp/d/f')
  assert.equal(await files.makeDir('/tmp/d/new'), true)
  assert.equal(await files.makeDir('/tmp/d/new'), false)
  await files.rename('/tmp/d/f', '/tmp/d/new/g')
  assert.equal(await files.exists('/tmp/d/f'), false)
  assert.equal(await files.read('/tmp/d/new/g'), '123\n')
  await files.remove('/tmp/d')
  assert.equal(await files.exists('/tmp/d'), false)
})

test('metadata', async () => {
  const { files } = shared.box
  const info = await files.write('/tmp/meta', 'x', { metadata: { Who: 'me', k: 'v' } })
  assert.deepEqual(info.metadata, { who: 'me', k: 'v' })
  assert.deepEqual((await files.getInfo('/tmp/meta')).metadata, { who: 'me', k: 'v' })
})

test('watching, deep and flat', async () => {
  const { files } = shared.box
  await files.makeDir('/tmp/w/sub')
  const flat = [], deep = []
  const one = await files.watchDir('/tmp/w', (e) => void flat.push(e))
  const two = await files.watchDir('/tmp/w', (e) => void deep.push(e), { recursive: true, includeEntry: true })
  await files.write('/tmp/w/sub/f', 'x')
  await files.write('/tmp/w/top', 'x')
  await waitFor(() => deep.some((e) => e.name === 'sub/f') && deep.some((e) => e.name === 'top'), 'both seen')
  await waitFor(() => flat.some((e) => e.name === 'top' && e.type === FilesystemEventType.WRITE), 'the top one seen')
  assert.ok(!flat.some((e) => e.name.startsWith('sub/')))
  assert.equal(deep.find((e) => e.name === 'top' && e.entry)?.entry.path, '/tmp/w/top')
  await one.stop()
  await two.stop()
  await assert.rejects(files.watchDir('/tmp/none', () => {}), FileNotFoundError)
})

test('signed URLs, with nothing but the URL', async () => {
  const { box } = shared
  const form = new FormData()
  form.append('file', 'by form')
  assert.equal((await fetch(await box.uploadUrl('/tmp/signed'), { method: 'POST', body: form })).status, 200)
  assert.equal(await box.files.read('/tmp/signed'), 'by form')
  assert.equal(await (await fetch(await box.downloadUrl('/tmp/signed'))).text(), 'by form')
  const late = await fetch(await box.downloadUrl('/tmp/signed', { useSignatureExpiration: -10 }), {
    headers: { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '49983' },
  })
  assert.deepEqual([late.status, await late.json()], [401, { code: 401, message: 'signature is already expired' }])
})

test('a server on loopback is reached', async () => {
  const { box } = shared
  const server = await box.commands.run('exec python3 -m http.server 8000 --bind 127.0.0.1 --directory /etc', { background: true, timeoutMs: 0 })
  const head = { 'E2b-Sandbox-Id': box.sandboxId, 'E2b-Sandbox-Port': '8000' }
  const answer = await waitFor(async () => {
    const a = await fetch(`${process.env.E2B_SANDBOX_URL}/hostname`, { headers: head })
    return a.status === 200 && a
  }, 'it answers')
  assert.ok((await answer.text()).length > 1)
  await server.kill()
})
