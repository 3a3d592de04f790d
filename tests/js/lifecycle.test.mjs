// The control API as the JS SDK drives it.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { AuthenticationError, Sandbox, SandboxError, SandboxNotFoundError } from 'e2b'
import { sharedSandbox, waitFor, withSandbox } from './box.mjs'

const shared = sharedSandbox({ metadata: { js: 'yes', 'a b&=': 'c/d ü' }, envs: { GREETING: 'grüß' } })

test('create, run, kill, and killed once', async () => {
  const box = await Sandbox.create()
  assert.equal((await box.commands.run('echo $((6*7))')).stdout, '42\n')
  assert.equal(await box.isRunning(), true)
  assert.equal(await box.kill(), true)
  assert.equal(await box.isRunning(), false)
  assert.equal(await box.kill(), false)
  assert.equal(await Sandbox.kill(box.sandboxId), false)
})

test('a gone sandbox is not found', async () => {
  const id = 'i' + '0'.repeat(25)
  await assert.rejects(Sandbox.connect(id), SandboxNotFoundError)
  await assert.rejects(Sandbox.getInfo(id), SandboxNotFoundError)
  await assert.rejects(Sandbox.setTimeout(id, 1000), SandboxNotFoundError)
})

test('info', async () => {
  const info = await shared.box.getInfo()
  assert.equal(info.sandboxId, shared.box.sandboxId)
  assert.deepEqual(info.metadata, { js: 'yes', 'a b&=': 'c/d ü' })
  assert.equal(info.state, 'running')
  assert.ok(info.cpuCount >= 1 && info.memoryMB >= 128)
  assert.ok(info.endAt > info.startedAt)
})

test('list filters by metadata and pages', async () => {
  await withSandbox({ metadata: { page: 'js' } }, (a) =>
    withSandbox({ metadata: { page: 'js' } }, async (b) => {
      const pages = []
      const listing = Sandbox.list({ query: { metadata: { page: 'js' } }, limit: 1 })
      while (listing.hasNext) pages.push((await listing.nextItems()).map((s) => s.sandboxId))
      assert.deepEqual(pages, [[b.sandboxId], [a.sandboxId]])
    }),
  )
  const found = await Sandbox.list({ query: { metadata: { 'a b&=': 'c/d ü' }, state: ['running'] } }).nextItems()
  assert.deepEqual(found.map((s) => s.sandboxId), [shared.box.sandboxId])
})

test('connect is the same sandbox', async () => {
  await shared.box.files.write('note', 'hello')
  const other = await Sandbox.connect(shared.box.sandboxId)
  assert.equal(await other.files.read('note'), 'hello')
  assert.equal((await other.commands.run('echo $GREETING')).stdout, 'grüß\n')
})

test('timeouts', async () => {
  const box = await Sandbox.create({ timeoutMs: 60_000 })
  await box.setTimeout(600_000)
  assert.ok((await box.getInfo()).endAt - Date.now() > 590_000)
  await box.setTimeout(1000)
  await waitFor(async () => !(await box.isRunning()), 'its time passed', 6000)
})

test('a wrong key', async () => {
  await assert.rejects(Sandbox.create({ apiKey: 'e2b_' + 'ab'.repeat(20) }), AuthenticationError)
})

test('options that are not there yet fail by name', async () => {
  await assert.rejects(Sandbox.create({ lifecycle: { onTimeout: 'pause' } }), (e) => e instanceof SandboxError && /autoPause/.test(e.message))
  await assert.rejects(Sandbox.create({ network: { denyOut: ['1.1.1.1'] } }), /network/)
})

test('an unknown template', async () => {
  await assert.rejects(Sandbox.create('no-such-template'), SandboxError)
})

test('no internet', async () => {
  await withSandbox({ allowInternetAccess: false }, async (box) => {
    const open = await shared.box.commands.run('curl -s -m 5 -o /dev/null -w "%{http_code}" http://203.0.113.10/')
    assert.equal(open.stdout, '200')
    const closed = await box.commands.run('curl -s -m 3 http://203.0.113.10/ || echo refused')
    assert.equal(closed.stdout, 'refused\n')
    assert.equal((await box.getInfo()).allowInternetAccess, false)
  })
})

test('metrics', async () => {
  const [one] = await waitFor(async () => {
    const got = await shared.box.getMetrics()
    return got.length && got
  }, 'a first sample', 30_000)
  assert.ok(one.memTotal > 0 && one.diskTotal > 0 && one.cpuCount >= 1)
})
