// Commands and terminals through the JS SDK.
import assert from 'node:assert/strict'
import { test } from 'node:test'
import { CommandExitError, InvalidArgumentError, NotFoundError, Sandbox, SandboxError, TimeoutError } from 'e2b'
import { sharedSandbox, waitFor } from './box.mjs'

const shared = sharedSandbox()

test('output, errors and exit codes', async () => {
  const out = []
  const result = await shared.box.commands.run('echo out; echo err >&2', { onStdout: (s) => out.push(s) })
  assert.deepEqual([result.stdout, result.stderr, result.exitCode, out.join('')], ['out\n', 'err\n', 0, 'out\n'])
  await assert.rejects(shared.box.commands.run('echo x; exit 42'), (e) => e instanceof CommandExitError && e.exitCode === 42 && e.stdout === 'x\n')
})

test('user, directory, environment', async () => {
  const { commands } = shared.box
  assert.equal((await commands.run('id -un; pwd')).stdout, 'user\n/home/user\n')
  assert.equal((await commands.run('id -un; pwd', { user: 'root' })).stdout, 'root\n/root\n')
  assert.equal((await commands.run('pwd; echo $A', { cwd: '/tmp', envs: { A: 'b' } })).stdout, '/tmp\nb\n')
  await assert.rejects(commands.run('true', { cwd: '/no/such' }), InvalidArgumentError)
})

test('background, stdin, list, kill', async () => {
  const { commands } = shared.box
  const handle = await commands.run('cat', { background: true, stdin: true })
  assert.ok((await commands.list()).some((p) => p.pid === handle.pid && p.cmd === '/bin/bash'))
  await handle.sendStdin('one ')
  await commands.sendStdin(handle.pid, new TextEncoder().encode('two\n'))
  await handle.closeStdin()
  assert.equal((await handle.wait()).stdout, 'one two\n')
  const sleeper = await commands.run('sleep 600', { background: true })
  assert.equal(await sleeper.kill(), true)
  await assert.rejects(sleeper.wait(), CommandExitError)
  assert.equal(await commands.kill(sleeper.pid), false)
  await assert.rejects(commands.connect(999_999), NotFoundError)
})

test('connect from a second client', async () => {
  const { box } = shared
  const first = await box.commands.run('read x; echo got $x; exit 5', { background: true, stdin: true })
  const other = await Sandbox.connect(box.sandboxId)
  const second = await other.commands.connect(first.pid)
  await first.sendStdin('it\n')
  for (const handle of [first, second]) {
    await assert.rejects(handle.wait(), (e) => e.exitCode === 5 && e.stdout === 'got it\n')
  }
})

test('a timeout ends the process', async () => {
  const { commands } = shared.box
  await assert.rejects(commands.run('sleep 1414', { timeoutMs: 1000 }), TimeoutError)
  await waitFor(async () => !(await commands.list()).some((p) => p.args.join(' ').includes('sleep 1414')), 'it is gone')
})

test('ten megabytes in one line', async () => {
  const { stdout } = await shared.box.commands.run(`python3 -c "import sys; sys.stdout.write('ab' * 5 * 1024 * 1024)"`)
  assert.equal(stdout.length, 10 * 1024 * 1024)
})

test('invalid and cut UTF-8', async () => {
  const { stdout } = await shared.box.commands.run("printf '\\377ok\\n'; printf 'gr\\303'; sleep 0.2; printf '\\274n'")
  assert.equal(stdout, '\ufffdok\ngrün')
})

test('output in the last moment', async () => {
  for (let i = 0; i < 5; i++) {
    await assert.rejects(
      shared.box.commands.run(`python3 -S -c "import os; os.write(1, b'x'*60000+b'END'); os._exit(9)"`),
      (e) => e.exitCode === 9 && e.stdout.length === 60003 && e.stdout.endsWith('END'),
    )
  }
})

test('fifty commands at once', async () => {
  const all = await Promise.all(Array.from({ length: 50 }, (_, i) => shared.box.commands.run(`echo ${i}`)))
  assert.deepEqual(all.map((r) => r.stdout), Array.from({ length: 50 }, (_, i) => `${i}\n`))
})

test('a terminal', async () => {
  const { pty } = shared.box
  let screen = ''
  const decoder = new TextDecoder()
  const handle = await pty.create({ cols: 80, rows: 24, envs: { MINE: 'yes' }, onData: (d) => { screen += decoder.decode(d, { stream: true }) } })
  const type = (text) => pty.sendInput(handle.pid, new TextEncoder().encode(text))
  await type('stty size; echo "$MINE-$((40+2))"\n')
  await waitFor(() => screen.includes('24 80') && screen.includes('yes-42'), `the answer on ${JSON.stringify(screen)}`)
  await pty.resize(handle.pid, { cols: 132, rows: 50 })
  await type('stty size\n')
  await waitFor(() => screen.includes('50 132'), 'the new size')
  await type('exit 3\n')
  await assert.rejects(handle.wait(), (e) => e.exitCode === 3)
  assert.equal(await pty.kill(handle.pid), false)
})

test('a killed sandbox ends its commands, and says why', async () => {
  const box = await Sandbox.create()
  const handle = await box.commands.run('echo up; sleep 600', { background: true, timeoutMs: 0 })
  const ended = assert.rejects(handle.wait(), (e) => e instanceof SandboxError && /killed|not found|end of life/i.test(e.message))
  await box.kill()
  await ended
  await assert.rejects(box.commands.run('true'), SandboxError)
})
