//! `hearth`: the server, the node and the command line in one binary. Here is the command
//! line's shape and nothing else; each command has a file below `cli`, and `wiring` joins
//! the rooms.

mod cli;
mod serve;
mod wiring;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// Sandboxes for AI agents, on your own machines.
#[derive(Debug, Parser)]
#[command(name = "hearth", version, about, propagate_version = true)]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Serve the API and run sandboxes, in the foreground.
    Serve(Box<serve::ServeArgs>),
    /// Build the template `base`, so that the first `serve` is ready at once.
    Prepare(cli::prepare::PrepareArgs),
    /// Print what a client has to set, as `export` lines.
    Env(cli::env::EnvArgs),
    /// Check this host and say how to mend what is wrong.
    Doctor(cli::doctor::DoctorArgs),
    /// End the server and every sandbox, and remove what they hold on the host.
    Down(cli::down::DownArgs),
    /// Manage API keys.
    #[command(subcommand)]
    Key(cli::key::KeyCommand),
    /// Manage sandboxes through the API.
    #[command(subcommand)]
    Sandbox(cli::sandbox::SandboxCommand),
    /// (Started by the server; becomes the program that carries a sandbox.)
    #[command(hide = true)]
    Launcher { setup: String },
}

fn main() -> ExitCode {
    // The launcher must stay single-threaded: it changes its namespaces.
    let arguments = match Arguments::parse().command {
        Command::Launcher { setup } => {
            return match hearth_runtime_oci::launcher::main(&setup) {
                Ok(()) => ExitCode::SUCCESS,
                Err(error) => {
                    eprintln!("launcher: {error}");
                    ExitCode::FAILURE
                }
            };
        }
        other => other,
    };
    let runtime = match tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime,
        Err(error) => {
            eprintln!("hearth: starting its threads: {error}");
            return ExitCode::FAILURE;
        }
    };
    let done = runtime.block_on(async {
        match arguments {
            Command::Serve(args) => serve::run(*args).await,
            Command::Prepare(args) => cli::prepare::run(args).await,
            Command::Env(args) => cli::env::run(&args),
            Command::Doctor(args) => cli::doctor::run(args).await,
            Command::Down(args) => cli::down::run(args).await,
            Command::Key(command) => cli::key::run(command).await,
            Command::Sandbox(command) => cli::sandbox::run(command).await,
            Command::Launcher { .. } => Ok(ExitCode::SUCCESS),
        }
    });
    // Blocking work that is still on its way (a read of a terminal) must not hold the exit.
    runtime.shutdown_background();
    match done {
        Ok(code) => code,
        Err(failure) => failure.print(),
    }
}
