// What launch/gekkofs/sharedfs_client.cpp uses of GekkoFS' user library, on a plain directory: the
// names and parameters of the real one, for a test of that file. ROOT/... is $USERLIB_BACKING/...
#pragma once
#include <cerrno>
#include <cstdint>
#include <cstdlib>
#include <dirent.h>
#include <fcntl.h>
#include <string>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>
#include <vector>

inline std::string real(const std::string &path) {
    return std::string(std::getenv("USERLIB_BACKING")) + path;
}

namespace gkfs::syscall {
inline int gkfs_open(const std::string &path, mode_t mode, int flags) {
    if (flags & (O_NOFOLLOW | O_CLOEXEC)) {
        errno = EINVAL;
        return -1;
    }
    return ::open(real(path).c_str(), flags, mode);
}
inline int gkfs_create(const std::string &path, mode_t mode) {
    return S_ISDIR(mode) ? ::mkdir(real(path).c_str(), mode & 07777) : (errno = EINVAL, -1);
}
inline int gkfs_remove(const std::string &path) { return ::unlink(real(path).c_str()); }
inline int gkfs_close(unsigned fd) { return ::close(static_cast<int>(fd)); }
inline ssize_t gkfs_pwrite(int fd, const void *from, size_t bytes, off64_t offset) {
    return ::pwrite(fd, from, bytes, offset);
}
inline ssize_t gkfs_pread(int fd, void *to, size_t bytes, off64_t offset) {
    return ::pread(fd, to, bytes, offset);
}
inline int gkfs_stat(const std::string &path, struct stat *to, bool = true) {
    return ::stat(real(path).c_str(), to);
}
inline std::vector<std::string> gkfs_get_file_list(const std::string &path) {
    std::vector<std::string> names;
    if (DIR *directory = ::opendir(real(path).c_str())) {
        while (dirent *entry = ::readdir(directory))
            if (entry->d_name[0] != '.')
                names.push_back(entry->d_name);
        ::closedir(directory);
    }
    return names;
}
} // namespace gkfs::syscall

extern "C" inline int gkfs_init() { return std::getenv("USERLIB_BACKING") ? 0 : -1; }
