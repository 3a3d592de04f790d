//! Compiles `proto/` into message types and service traits. Needs `protoc` with the
//! well-known types beside it (Debian: `protobuf-compiler` and `libprotobuf-dev`).

fn main() {
    let compiled = connectrpc_build::Config::new()
        .files(&[
            "../../proto/process/process.proto",
            "../../proto/filesystem/filesystem.proto",
        ])
        .includes(&["../../proto"])
        .include_file("rpc.rs")
        .gate_client_feature(true)
        .compile();
    if let Err(error) = compiled {
        panic!("compiling proto/ with protoc: {error:#}");
    }
}
