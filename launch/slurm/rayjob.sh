# shellcheck shell=bash
# Ray over a job's nodes, as a step beside what else runs. Sourced after common.sh, not run.

# Starts it, and exports RAY_ADDRESS and a token without which nobody is let in: whoever reaches
# an open Ray runs commands as its user. `end_ray` ends it.
start_ray() {
    local address port
    read -r address port < <("${PYTHON[@]}" -m launch.tier address)
    export RAY_ADDRESS=$address:$port
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$FLEET_LOGS/ray-token
    (umask 077 && rm -f "$RAY_AUTH_TOKEN_PATH" &&
        "${PYTHON[@]}" -c "import secrets; print(secrets.token_hex(32))" >"$RAY_AUTH_TOKEN_PATH") ||
        exit
    start_step ray launch/slurm/ray.sh "$address" "$port"
}

end_ray() {
    end_step ray
    rm -f "$RAY_AUTH_TOKEN_PATH"
}
