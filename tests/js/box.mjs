// What the JS tests share: one sandbox per file, and waiting for states.
import { after, before } from 'node:test'
import { Sandbox } from 'e2b'

/** A sandbox for all tests of a file. Read `.box` inside a test. */
export function sharedSandbox(opts = {}) {
  const shared = {}
  before(async () => {
    shared.box = await Sandbox.create({ timeoutMs: 600_000, ...opts })
  })
  after(async () => {
    await shared.box?.kill()
  })
  return shared
}

/** Calls `probe` until it is truthy. */
export async function waitFor(probe, what, deadlineMs = 15_000) {
  const end = Date.now() + deadlineMs
  let last
  for (;;) {
    try {
      const value = await probe()
      if (value) return value
      last = value
    } catch (e) {
      last = e
    }
    if (Date.now() > end) throw new Error(`not within ${deadlineMs} ms: ${what}; last: ${last}`)
    await new Promise((r) => setTimeout(r, 50))
  }
}

/** Runs `body` with a sandbox of its own. */
export async function withSandbox(opts, body) {
  const box = await Sandbox.create(opts)
  try {
    return await body(box)
  } finally {
    await box.kill()
  }
}
